"""Every seed of a training run, derived from the one in its config."""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a seed is for: different purposes never share a stream of random numbers."""

    WEIGHTS = 1
    ACTIONS = 2
    EPISODES = 3
    CALLS = 4


def derive(seed: int, purpose: Purpose, index: int = 0) -> int:
    """A seed in [2**30, 2**31): above those that validation, evaluation and safety count up from."""
    (word,) = np.random.SeedSequence([seed, int(purpose), index]).generate_state(1)
    return 2**30 + int(word) % 2**30
