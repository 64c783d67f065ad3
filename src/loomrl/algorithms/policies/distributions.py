"""Distributions over actions, one for each kind of action space: greedy actions, samples, log-probabilities, entropies.

They hold no weights: a policy's head gives the parameters, `logits` or `mean` and `log_std`, and the distribution says
what they mean. A raw action is a sample as probabilities are computed of it: an index, bits, or a Gaussian sample
before it was clipped or squashed. Shapes: N rows; all probabilities and entropies in nats.
"""

import math
from abc import ABC, abstractmethod
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from loomrl.algorithms.noise import negated_gumbel
from loomrl.environment.spaces import float32_bounds
from loomrl.errors import ConfigError
from loomrl.types import Act, Trajectory

SUPPORTED = "Discrete, MultiDiscrete, MultiBinary and Box of floats"
_QUADRATURE_NODES = 24  # the squashed entropy is then exact to 1e-4 for standard deviations up to 1.5

Parameters = tuple[Tensor, ...]
Arrays = tuple[NDArray[Any], ...]


class Distribution(nn.Module, ABC):
    """What every distribution over actions offers. `names` are those of its parameters, `width` is the number of their
    columns, `kind` the manifest's word for it, such as "discrete".

    Raw actions are what probabilities are computed of: indices from 0, bits, or samples of a Gaussian before they are
    brought to the bounds of the space.
    """

    names: tuple[str, ...]
    kind: str
    width: int

    @abstractmethod
    def greedy(self, parameters: Parameters) -> Tensor:
        """Parameters of N rows -> the most likely actions (N, *action), as the environment takes them."""

    @abstractmethod
    def sample(self, parameters: Arrays, rng: np.random.Generator) -> Act:
        """Draw actions (N, *action) from parameters, as NumPy arrays, of N rows. What `raw_actions` needs beyond the
        actions stands in the `extras` of the result."""

    def raw_actions(self, trajectory: Trajectory) -> Tensor:
        """The raw actions of a whole trajectory (T, B), as N = T x B rows: (N,) indices, (N, A) bits or samples."""
        action = trajectory.action
        return self.from_actions(torch.from_numpy(action.reshape(-1, *action.shape[2:])))

    @abstractmethod
    def from_actions(self, action: Tensor) -> Tensor:
        """Actions as the environment takes them (N, *action) -> raw actions: (N,) indices, (N, A) indices or bits.
        Continuous actions must be given as samples before clipping or squashing, and only get the shape (N, A)."""

    @abstractmethod
    def log_prob_and_entropy(self, parameters: Parameters, raw_action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (N,) of raw actions, and the entropy of each row (N,), or one for all ()."""


class CategoricalActions(Distribution):
    """Actions of Discrete(n): one categorical distribution with `logits` (N, n). Raw actions are indices (N,) from
    0."""

    names, kind = ("logits",), "discrete"

    def __init__(self, space: gymnasium.spaces.Discrete) -> None:
        super().__init__()
        self.width, self.start = int(space.n), int(space.start)

    def greedy(self, parameters: Parameters) -> Tensor:
        """Logits (N, n) -> the actions of the highest logits (N,); of equal ones the first."""
        index = parameters[0].argmax(-1)
        return index + self.start if self.start else index

    def sample(self, parameters: Arrays, rng: np.random.Generator) -> Act:
        """Logits (N, n) -> actions (N,) drawn with the softmax's probabilities."""
        index = _perturbed(parameters[0], rng).argmax(-1)
        return Act(action=index + self.start if self.start else index)

    def from_actions(self, action: Tensor) -> Tensor:
        """Actions (N,) of a space that may begin above 0 -> indices (N,) from 0, int64."""
        return action.to(torch.int64) - self.start

    def log_prob_and_entropy(self, parameters: Parameters, raw_action: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, n) and indices (N,) -> log-probabilities (N,) and entropies (N,), in nats."""
        return categorical_log_prob_and_entropy(parameters[0], raw_action)


class MultiCategoricalActions(Distribution):
    """MultiDiscrete(nvec): independent categoricals whose `logits` (N, sum(nvec)) stand one after the other. Raw
    actions are indices (N, components), each from 0."""

    names, kind = ("logits",), "multi_discrete"
    offset: Tensor

    def __init__(self, space: gymnasium.spaces.MultiDiscrete) -> None:
        super().__init__()
        self.sizes = [int(size) for size in space.nvec.ravel()]
        self.width, self.shape, self.dtype = sum(self.sizes), space.shape, np.dtype(space.dtype)
        self.starts = space.start.ravel().astype(np.int64)
        self.register_buffer("offset", torch.from_numpy(self.starts), persistent=False)

    def greedy(self, parameters: Parameters) -> Tensor:
        """Logits (N, sum(nvec)) -> actions (N, *action): of each component the one of the highest logit."""
        index = torch.stack([part.argmax(-1) for part in torch.split(parameters[0], self.sizes, -1)], -1)
        index = index + self.offset if self.starts.any() else index
        return index if len(self.shape) == 1 else index.reshape(-1, *self.shape)

    def sample(self, parameters: Arrays, rng: np.random.Generator) -> Act:
        """Logits (N, sum(nvec)) -> actions (N, *action), each component drawn with its softmax's probabilities."""
        perturbed = np.split(_perturbed(parameters[0], rng), np.cumsum(self.sizes)[:-1], -1)
        index = np.stack([part.argmax(-1) for part in perturbed], -1) + self.starts
        return Act(action=index.astype(self.dtype, copy=False).reshape(-1, *self.shape))

    def from_actions(self, action: Tensor) -> Tensor:
        """Actions (N, *action) -> indices (N, components), int64, of each component from 0."""
        return action.reshape(-1, len(self.sizes)).to(torch.int64) - self.offset

    def log_prob_and_entropy(self, parameters: Parameters, raw_action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (N,) and entropies (N,) in nats, each the sum over the independent components."""
        parts = zip(torch.split(parameters[0], self.sizes, -1), raw_action.unbind(-1), strict=True)
        log_probs, entropies = zip(*(categorical_log_prob_and_entropy(*part) for part in parts), strict=True)
        return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)


class BernoulliActions(Distribution):
    """MultiBinary(n): independent bits; `logits` (N, n) are the log-odds of a one. Raw actions are bits (N, n),
    float32."""

    names, kind = ("logits",), "multi_binary"

    def __init__(self, space: gymnasium.spaces.MultiBinary) -> None:
        super().__init__()
        self.shape, self.width = space.shape, math.prod(space.shape)

    def greedy(self, parameters: Parameters) -> Tensor:
        """Log-odds (N, n) -> bits (N, *action), int8: 1 where a one is more likely than a zero."""
        bits = (parameters[0] > 0).to(torch.int8)
        return bits if len(self.shape) == 1 else bits.reshape(-1, *self.shape)

    def sample(self, parameters: Arrays, rng: np.random.Generator) -> Act:
        """Log-odds (N, n) -> bits (N, *action), int8, each drawn independently."""
        logits = parameters[0]
        # A logistic variable is below l with probability sigmoid(l).
        bits = logits > rng.logistic(size=logits.shape)
        return Act(action=bits.astype(np.int8).reshape(-1, *self.shape))

    def from_actions(self, action: Tensor) -> Tensor:
        """Bits (N, *action) -> bits (N, n), float32."""
        return action.reshape(-1, self.width).to(torch.float32)

    def log_prob_and_entropy(self, parameters: Parameters, raw_action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-odds l and bits a, both (N, n) -> log-probabilities (N,) and entropies (N,), in nats.

        log p = a l - log(1 + e^l) and H = log(1 + e^l) - l sigmoid(l), summed over the bits.
        """
        logits = parameters[0]
        normaliser = functional.softplus(logits)
        log_prob = (raw_action * logits - normaliser).sum(-1)
        return log_prob, (normaliser - logits * torch.sigmoid(logits)).sum(-1)


class GaussianActions(Distribution):
    """Box: a diagonal Gaussian with `mean` (N, A) and `log_std` (A,) or (N, A). Its samples are clipped to the bounds
    for the environment only: probabilities are those of the sample before clipping, which is the raw action (N, A).

    `low` and `high` (A,) are the bounds.
    """

    names, kind = ("mean", "log_std"), "continuous"
    low: Tensor
    high: Tensor

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        super().__init__()
        self.shape, self.dtype, self.width = space.shape, np.dtype(space.dtype), math.prod(space.shape)
        for name, bound in zip(("low", "high"), float32_bounds(space), strict=True):  # flat; derived, so not saved
            self.register_buffer(name, torch.from_numpy(bound), persistent=False)

    def greedy(self, parameters: Parameters) -> Tensor:
        """The mean of `(mean, log_std)`, (N, A) -> within the bounds, (N, *action)."""
        return self.bounded(parameters[0])

    def sample(self, parameters: Arrays, rng: np.random.Generator) -> Act:
        """Draw actions (N, *action) within the bounds from `(mean, log_std)`; the sample itself, (N, A), is
        `extras["sample"]`."""
        mean, log_std = parameters
        sample = mean + np.exp(log_std) * rng.standard_normal(mean.shape, np.float32)
        action = self.bounded(torch.from_numpy(sample)).numpy().astype(self.dtype, copy=False)
        return Act(action=action, extras={"sample": sample})

    def bounded(self, sample: Tensor) -> Tensor:
        """Samples of the Gaussian (N, A) -> actions within the bounds (N, *action)."""
        return self._shaped(torch.maximum(torch.minimum(sample, self.high), self.low))

    def _shaped(self, action: Tensor) -> Tensor:
        return action if len(self.shape) == 1 else action.reshape(-1, *self.shape)

    def raw_actions(self, trajectory: Trajectory) -> Tensor:
        """The samples that a trajectory (T, B) keeps in `extras["sample"]`, as N = T x B rows (N, A). One without them
        raises KeyError."""
        sample = trajectory.extras["sample"]
        return torch.from_numpy(sample.reshape(-1, sample.shape[-1]))

    def from_actions(self, action: Tensor) -> Tensor:
        """Samples (N, *action), not yet clipped or squashed -> the same as rows (N, A)."""
        return action.reshape(-1, self.width)

    def log_prob_and_entropy(self, parameters: Parameters, raw_action: Tensor) -> tuple[Tensor, Tensor]:
        """`(mean, log_std)` and samples (N, A) -> log-densities (N,), and entropies (N,), or () where all rows have one
        `log_std`; in nats."""
        mean, log_std = parameters
        return gaussian_log_prob_and_entropy(mean, log_std, raw_action)


class SquashedGaussianActions(GaussianActions):
    """Box with finite bounds: the action is low + (high - low) (tanh(u) + 1) / 2 of a diagonal Gaussian's sample u.

    Log-densities are those of the action: log N(u) - sum log(da/du), with log(1 - tanh(u)^2) = 2 (log 2 - u -
    softplus(-2u)), which stays finite where tanh saturates (Haarnoja et al., arXiv 1801.01290, appendix C). The entropy
    has no closed form: E[log(da/du)] is taken by Gauss-Hermite quadrature, so it draws nothing and has a gradient.

    Raises:
        ConfigError: for a Box without finite bounds.
    """

    kind = "squashed"
    nodes: Tensor
    weights: Tensor

    def __init__(self, space: gymnasium.spaces.Box) -> None:
        if not space.is_bounded():
            raise ConfigError(
                f"squash_actions needs finite action bounds, found {space}; leave squash_actions false, or rescale the "
                "action with gymnasium.wrappers.RescaleAction"
            )
        super().__init__(space)
        nodes, weights = np.polynomial.hermite_e.hermegauss(_QUADRATURE_NODES)  # for the weight exp(-x^2 / 2)
        self.register_buffer("nodes", torch.from_numpy(nodes.astype(np.float32)), persistent=False)
        scaled = (weights / math.sqrt(2.0 * math.pi)).astype(np.float32)
        self.register_buffer("weights", torch.from_numpy(scaled), persistent=False)

    def bounded(self, sample: Tensor) -> Tensor:
        """A Gaussian sample (N, A) -> its squashed action within bounds (N, *action)."""
        half = (self.high - self.low) / 2
        action = self.low + half * (torch.tanh(sample) + 1.0)
        return self._shaped(torch.minimum(action, self.high))  # rounding may lead one bit beyond

    def log_prob_and_entropy(self, parameters: Parameters, raw_action: Tensor) -> tuple[Tensor, Tensor]:
        """`(mean, log_std)` and samples u before squashing (N, A) -> log-densities of the squashed actions (N,) and
        their entropies (N,), in nats."""
        mean, log_std = parameters
        log_prob, entropy = gaussian_log_prob_and_entropy(mean, log_std, raw_action)
        scale = torch.log((self.high - self.low) / 2)
        points = mean.unsqueeze(-1) + torch.exp(log_std).unsqueeze(-1) * self.nodes  # (N, A, nodes)
        expected = (log_tanh_slope(points) * self.weights).sum(-1)  # (N, A)
        return log_prob - (log_tanh_slope(raw_action) + scale).sum(-1), entropy + (expected + scale).sum(-1)


def action_distribution(space: gymnasium.Space[Any], squash: bool = False) -> Distribution:
    """The distribution over the actions of a space; with `squash` continuous actions are brought to their bounds by
    tanh in place of clipping.

    Raises:
        ConfigError: for spaces without one, naming those that have one; for squashing what has no finite bounds.
    """
    if isinstance(space, gymnasium.spaces.Box) and np.dtype(space.dtype).kind == "f":
        return SquashedGaussianActions(space) if squash else GaussianActions(space)
    if squash:
        raise ConfigError(f"squash_actions is for Box actions, found {space}; leave it false")
    if isinstance(space, gymnasium.spaces.Discrete):
        return CategoricalActions(space)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return MultiCategoricalActions(space)
    if isinstance(space, gymnasium.spaces.MultiBinary):
        return BernoulliActions(space)
    raise ConfigError(f"action space {space} is not supported; supported: {SUPPORTED}; {_fix(space)}")


def _fix(space: gymnasium.Space[Any]) -> str:
    if isinstance(space, gymnasium.spaces.Box):
        return "declare whole-number actions as MultiDiscrete, or the Box as float32 and round in the environment"
    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        return "put its parts into one MultiDiscrete or one Box, and take them apart in the environment's step"
    return "wrap the environment so that it takes one of those"


# --- pure functions ---------------------------------------------------------------------------------------------


def categorical_log_prob_and_entropy(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (N, n) and indices (N,) -> log-probabilities (N,) and entropies (N,), in nats."""
    log_probs = functional.log_softmax(logits, dim=-1)
    log_prob = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return log_prob, -(log_probs.exp() * log_probs).sum(-1)


def gaussian_log_prob_and_entropy(mean: Tensor, log_std: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (N, A), log std (A,) or (N, A), samples (N, A) -> log-densities (N,) and entropies () or (N,), in nats."""
    scaled = (action - mean) * torch.exp(-log_std)
    constant = 0.5 * math.log(2.0 * math.pi) * mean.shape[-1]
    log_prob = -0.5 * scaled.square().sum(-1) - log_std.sum(-1) - constant
    return log_prob, log_std.sum(-1) + constant + 0.5 * mean.shape[-1]


def log_tanh_slope(sample: Tensor) -> Tensor:
    """log(1 - tanh(u)^2) of every value u, in the same shape, without cancellation where tanh saturates."""
    return 2.0 * (math.log(2.0) - sample - functional.softplus(-2.0 * sample))


def _perturbed(logits: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    perturbed: NDArray[Any] = logits - negated_gumbel(logits.shape, rng)
    return perturbed
