"""Which reset seeds are whose: no two of these ranges share one, so that no episode is met by two that must not both
see it. Training's own lie above all others."""

FIRST_TRAINING_SEED = 2**30
TRAINING_SEEDS = range(FIRST_TRAINING_SEED, 2 * FIRST_TRAINING_SEED)

TRIAL_SEEDS = range(1_000_000)  # of an environment itself: its checks, and the rollouts of its fingerprint
EVALUATION_SEEDS = range(1_000_000, 2_000_000)
SAFETY_SEEDS = range(2_000_000, 3_000_000)
VALIDATION_SEEDS = range(3_000_000, 4_000_000)  # of those that pick the policy, in training and in tuning
SHADOW_SEEDS = range(4_000_000, 5_000_000)  # of the traffic that is simulated
BENCHMARK_SEEDS = range(5_000_000, 6_000_000)  # of whoever measures a finished policy, outside the life cycle
CONSEQUENCES_SEEDS = range(6_000_000, 7_000_000)  # of what the shadow stage plays apart from its traffic
DISTRIBUTED_SEEDS = range(7_000_000, 8_000_000)  # of `PolicyEvaluator`'s episodes

SEEDS = {
    "training": TRAINING_SEEDS,
    "trial": TRIAL_SEEDS,
    "evaluation": EVALUATION_SEEDS,
    "safety": SAFETY_SEEDS,
    "training.validation": VALIDATION_SEEDS,
    "shadow": SHADOW_SEEDS,
    "benchmarks": BENCHMARK_SEEDS,
    "shadow.consequences": CONSEQUENCES_SEEDS,
    "distributed": DISTRIBUTED_SEEDS,
}
