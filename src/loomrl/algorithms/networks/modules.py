"""Small dense networks: an encoder, and the heads that turn its features into distributions and values.

`PolicyNetwork` puts them on one shared encoder, as in the specification of the framework; PPO gives the actor and
the critic an encoder each (Andrychowicz et al., arXiv 2006.05990, section 3.2: separate networks do better).

Weights start orthogonal (Saxe et al., arXiv 1312.6120), biases at zero. Pass a `torch.Generator` for weights that
follow from a seed alone; without one torch's global generator draws them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from loomrl.errors import ConfigError

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}
LOG_STD_BOUNDS = (-20.0, 2.0)
_Layer = TypeVar("_Layer", nn.Linear, nn.Conv2d)


def linear(input_dim: int, output_dim: int, gain: float, generator: torch.Generator | None) -> nn.Linear:
    """A dense layer with orthogonal weights scaled by `gain` and zero biases. `generator` draws them; None: torch's
    global one."""
    return orthogonal_layer(partial(nn.Linear, input_dim, output_dim), gain, generator)


def orthogonal_layer(make: Callable[[], _Layer], gain: float, generator: torch.Generator | None) -> _Layer:
    """The layer that `make` returns, with orthogonal weights over (output, all inputs), scaled by `gain`, and zero
    biases. `generator` draws them; None: torch's global one."""
    with torch.random.fork_rng(devices=()):  # the constructor draws weights of its own from the global generator
        layer = make()
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


class StateEncoder(nn.Module):
    """Dense layers with an activation after each: states (B, input_dim) -> features (B, hidden_dims[-1]).

    Raises:
        ConfigError: for a width that is no positive whole number, no hidden layer, or an activation that is not in
            `ACTIVATIONS`.
    """

    def __init__(
        self,
        input_dim: int,
        hidden_dims: Sequence[int],
        activation: str = "tanh",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _demand_positive("input_dim", input_dim)
        if not hidden_dims:
            raise ConfigError("hidden_dims is empty; give at least one layer width, for example [64, 64]")
        if activation not in ACTIVATIONS:
            raise ConfigError(f"activation {activation!r} is unknown; allowed: {', '.join(ACTIVATIONS)}")
        self.input_dim = input_dim
        self.output_dim = hidden_dims[-1]
        layers: list[nn.Module] = []
        for width in hidden_dims:
            _demand_positive("hidden_dims", width)
            layers += [linear(input_dim, width, math.sqrt(2), generator), ACTIVATIONS[activation]()]
            input_dim = width
        self.layers = nn.Sequential(*layers)

    def forward(self, state: Tensor) -> Tensor:
        """States (B, input_dim) -> features (B, hidden_dims[-1]); raises `ConfigError` for another last dimension."""
        if state.shape[-1] != self.input_dim:
            raise ConfigError(f"states of shape {tuple(state.shape)} reached an encoder of width {self.input_dim}")
        features: Tensor = self.layers(state)
        return features


class GaussianPolicyHead(nn.Module):
    """Features (B, input_dim) -> a diagonal Gaussian over `action_dim` numbers, whose log standard deviation is learnt,
    but the same in every state.

    Raises:
        ConfigError: for an `action_dim` that is no positive whole number, or bounds of which the lower is not below the
            upper.
    """

    def __init__(
        self,
        input_dim: int,
        action_dim: int,
        log_std_bounds: tuple[float, float] = LOG_STD_BOUNDS,
        generator: torch.Generator | None = None,
        initial_log_std: float = 0.0,
    ) -> None:
        super().__init__()
        _demand_positive("action_dim", action_dim)
        low, high = log_std_bounds
        if not low < high:
            raise ConfigError(f"log_std_bounds {log_std_bounds}: the lower bound must be below the upper one")
        self.mean = linear(input_dim, action_dim, 0.01, generator)  # near zero: early actions are centred
        self.log_std = nn.Parameter(torch.full((action_dim,), float(initial_log_std)))
        self.log_std_bounds = (float(low), float(high))

    def moments(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (B, action_dim) and bounded log standard deviation (action_dim,)."""
        return self.mean(features), self.log_std.clamp(*self.log_std_bounds)

    def forward(self, features: Tensor) -> Normal:
        """Features (B, input_dim) -> the Gaussian (B, action_dim) as an object, for use outside hot loops."""
        mean, log_std = self.moments(features)
        return Normal(mean, log_std.exp())


class LogitsHead(nn.Module):
    """Features (B, input_dim) -> logits (B, num_logits) of an action, or of several at once: categoricals, or bits. A
    `num_logits` that is no positive whole number raises ConfigError."""

    def __init__(self, input_dim: int, num_logits: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        _demand_positive("num_logits", num_logits)
        self.logits = linear(input_dim, num_logits, 0.01, generator)

    def forward(self, features: Tensor) -> Tensor:
        """Features (B, input_dim) -> logits (B, num_logits)."""
        logits: Tensor = self.logits(features)
        return logits


class ValueHead(nn.Module):
    """Features (B, input_dim) -> state values (B,)."""

    def __init__(self, input_dim: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.value = linear(input_dim, 1, 1.0, generator)

    def forward(self, features: Tensor) -> Tensor:
        """Features (B, input_dim) -> state values (B,)."""
        value: Tensor = self.value(features)
        return value.squeeze(-1)


class PolicyNetwork(nn.Module):
    """A Gaussian policy and a value on one shared encoder.

    `config` holds `state_dim`, `action_dim` and `encoder_dims`.

    Raises:
        ConfigError: for a key of these that is missing or another one, or a size that is no positive whole number.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        needed = ("state_dim", "action_dim", "encoder_dims")
        if missing := [name for name in needed if name not in config]:
            raise ConfigError(f"PolicyNetwork: missing {', '.join(missing)}; needed: {', '.join(needed)}")
        if unknown := sorted(set(config) - set(needed)):
            raise ConfigError(f"PolicyNetwork: unknown {', '.join(unknown)}; allowed: {', '.join(needed)}")
        self.state_encoder = StateEncoder(config["state_dim"], config["encoder_dims"])
        width = self.state_encoder.output_dim
        self.policy_head = GaussianPolicyHead(width, config["action_dim"], LOG_STD_BOUNDS)
        self.value_head = ValueHead(width)

    def forward(self, state: Tensor) -> tuple[Normal, Tensor]:
        """States (B, state_dim) -> the action distribution (B, action_dim) and values (B,)."""
        features = self.state_encoder(state)
        return self.policy_head(features), self.value_head(features)


def _demand_positive(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{name} must be a positive whole number, found {value!r}")
