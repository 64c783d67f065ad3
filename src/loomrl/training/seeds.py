"""Every seed of a training run, derived from the one in its config."""

from enum import IntEnum

import numpy as np

from loomrl.environment.seeds import FIRST_TRAINING_SEED


class Purpose(IntEnum):
    """What a seed is for: first weights, actions, episodes, or calls (each call of a trainer's `train`, and the warm
    start). Different purposes never share a stream of random numbers."""

    WEIGHTS = 1
    ACTIONS = 2
    EPISODES = 3
    CALLS = 4


def derive(seed: int, purpose: Purpose, index: int = 0) -> int:
    """The seed of a purpose that follows from a training's `seed`; `index` tells several of one purpose apart. It lies
    in [2**30, 2**31): above those that validation, evaluation, safety and shadow may use."""
    (word,) = np.random.SeedSequence([seed, int(purpose), index]).generate_state(1)
    return FIRST_TRAINING_SEED + int(word) % FIRST_TRAINING_SEED
