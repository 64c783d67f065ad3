"""What a server tells of itself: metrics, statistics, status."""
