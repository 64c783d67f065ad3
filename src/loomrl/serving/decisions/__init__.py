"""From a request to a decision on record."""
