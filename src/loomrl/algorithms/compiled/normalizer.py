"""`loomrl.algorithms.networks.preprocessing.ObservationNormalizer` without torch: the same statistics, the same
arithmetic.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.compiled.dense import Matrix, Vector
from loomrl.algorithms.compiled.jit import compiled
from loomrl.algorithms.peers import ALONE, LearnerGroup, Moments

CLIP = np.float32(10.0)
EPSILON = 1e-8


class Normalizer:
    """Running mean and variance of features (N, I), float64, with the `count` of rows they are of. `shift` and `scale`
    (I,) float32, which kernels read, follow from them: a normalised feature is (x - shift) scale."""

    def __init__(self, dim: int) -> None:
        self.mean, self.var, self.count = np.zeros(dim), np.ones(dim), 0.0
        self.shift, self.scale = np.zeros(dim, np.float32), np.ones(dim, np.float32)

    def update(self, features: NDArray[np.float32], peers: LearnerGroup = ALONE) -> None:
        """Merge a batch (N, I), and those of other learners, into the statistics."""
        batch = peers.all_reduce_moments(Moments.of(features))
        total = self.count + batch.count
        delta = batch.mean - self.mean
        squares = self.var * self.count + batch.var * batch.count + delta**2 * self.count * batch.count / total
        self.mean += delta * batch.count / total
        self.var, self.count = squares / total, total
        self.refresh()

    def refresh(self) -> None:
        """Compute shift and scale (I,), which the kernels read, from mean and variance."""
        constant = self.var < EPSILON
        self.shift[:] = self.mean
        self.scale[:] = np.where(constant, 1.0, 1.0 / np.sqrt(self.var + EPSILON))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Copies of mean, variance and count, under the names of the torch module's state."""
        return {"mean": self.mean.copy(), "var": self.var.copy(), "count": np.array(self.count)}

    def load(self, mean: NDArray[Any], var: NDArray[Any], count: NDArray[Any]) -> None:
        """Overwrite mean and variance (I,) and their count, and compute `shift` and `scale` from them."""
        self.mean[:], self.var, self.count = mean, np.array(var), float(count)
        self.refresh()


@compiled
def normalize_row(x: Vector, shift: Vector, scale: Vector, out: Vector) -> None:
    """Write (x - shift) scale, cut at ±CLIP standard deviations, into `out`; all (I,)."""
    for index in range(x.size):
        value = (x[index] - shift[index]) * scale[index]
        value = CLIP if value > CLIP else value
        out[index] = -CLIP if value < -CLIP else value


@compiled
def normalize(x: Matrix, shift: Vector, scale: Vector, out: Matrix) -> None:
    """Write the normalised rows of x (N, I) into `out` (N, I); see `normalize_row`."""
    for row in range(x.shape[0]):
        normalize_row(x[row], shift, scale, out[row])
