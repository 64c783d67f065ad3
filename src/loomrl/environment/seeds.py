"""Which seeds are whose: training's own, and below them those that are held out from it."""

FIRST_TRAINING_SEED = 2**30  # training's own seeds lie in [2**30, 2**31); held-out ones stay below
VALIDATION_SEEDS = range(3_000_000, 4_000_000)  # of those that pick the policy, where tasks are held out by seed
