"""The Trajectory API: environments post scored groups of token sequences to a hub, trainers take batches from it."""
