"""The noise by which actions are drawn, the same for every engine: equal generators give equal draws."""

import numpy as np
from numpy.typing import NDArray

TINY = np.finfo(np.float32).tiny


def negated_gumbel(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    """Negated Gumbel noise of the given shape, float32: argmax(logits - noise) is a sample of softmax(logits)."""
    return np.log(np.maximum(rng.standard_exponential(shape, np.float32), TINY))  # may draw 0


def gaussian_noise(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float32]:
    """Independent standard normal numbers of the given shape, float32."""
    return rng.standard_normal(shape, np.float32)
