"""What the hub holds: environments, groups of trajectories, the queue."""
