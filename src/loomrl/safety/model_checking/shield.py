"""A shield: which actions are allowed in each state, so that what is unsafe stays out of reach.

Where some choice keeps the unsafe states out of reach for ever, only such choices are allowed (the greatest fixed
point; Bloem et al., Shield synthesis, TACAS 2015). Elsewhere those whose risk is within a factor of the least one
(Jansen et al., Safe reinforcement learning using probabilistic shields, CONCUR 2020).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import ArtifactError, ConfigError
from loomrl.files import write_atomic
from loomrl.finite.model import Chain, FiniteModel, Floats, Ints, Mask
from loomrl.finite.of_environment import TERMINATED, Modelled
from loomrl.safety.model_checking.kernels import losing
from loomrl.safety.model_checking.reachability import until

_IMPROVEMENTS = 1_000
_IMPROVED = 1e-9  # of a risk, by which another choice must be better
_ACCURATE = 1e-6
_WRONG = "is no shield, or was damaged; build it again"


@dataclass(frozen=True)
class Shield:
    """What is allowed where: `risk[s, a]` is the least probability to become unsafe after action a in state s."""

    observations: NDArray[Any]  # (S, *obs)
    allowed: Mask  # (S, A)
    risk: Floats  # (S, A)

    def __post_init__(self) -> None:
        rows = self.observations.reshape(len(self.observations), -1)
        places = {row.tobytes(): index for index, row in enumerate(rows)}
        if len(places) < len(rows):
            raise ConfigError(
                "two states of the model are observed alike, so an observation does not say what is allowed"
            )
        object.__setattr__(self, "_places", places)

    def state_of(self, obs: NDArray[Any]) -> int:
        """The state behind one observation, (*obs).

        Raises:
            ConfigError: for an observation of no state of the model.
        """
        place = self._places.get(np.asarray(obs, self.observations.dtype).reshape(-1).tobytes())  # type: ignore[attr-defined]
        if place is None:
            raise ConfigError(f"observation {np.asarray(obs).tolist()} is no state of the shield's model")
        return int(place)

    def correct(self, obs: NDArray[Any], actions: NDArray[Any]) -> NDArray[np.int64]:
        """Actions, (B,), with those that are not allowed after `obs`, (B, *obs), replaced by the one of least risk."""
        corrected = np.asarray(actions, np.int64).copy()
        for index, one in enumerate(obs):
            state = self.state_of(one)
            if not self.allowed[state, corrected[index]]:
                corrected[index] = int(np.argmin(np.where(self.allowed[state], self.risk[state], np.inf)))
        return corrected

    @property
    def num_safe(self) -> int:
        """In how many states what is unsafe can be kept out of reach for ever."""
        return int(np.count_nonzero(self.risk.min(axis=1) == 0.0))

    def save(self, path: Path) -> None:
        """Write it as one file of arrays."""
        from safetensors.numpy import save

        arrays = {"observations": self.observations, "allowed": self.allowed, "risk": self.risk}
        write_atomic(path, save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))

    @classmethod
    def load(cls, path: Path) -> "Shield":
        """Read what `save` wrote.

        Raises:
            ArtifactError: when there is no such file, or it is damaged.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            arrays = load(path.read_bytes())
            return cls(arrays["observations"], arrays["allowed"], arrays["risk"])
        except (OSError, SafetensorError, KeyError) as error:
            raise ArtifactError(f"{path} {_WRONG} ({error})") from error


def build_shield(modelled: Modelled, unsafe: Mask, tolerance: float = 0.0) -> Shield:
    """A shield of all states in which something is decided: those in which an episode has not ended.

    Raises:
        ConfigError: for a negative tolerance, or when an observation does not tell two states apart.
    """
    allowed, risk = allowed_choices(modelled.model, unsafe, tolerance)
    deciding = ~modelled.model.states.labels.get(TERMINATED, np.zeros(len(unsafe), np.bool_))
    return Shield(modelled.observations[deciding], allowed[deciding], risk[deciding])


def allowed_choices(model: FiniteModel, unsafe: Mask, tolerance: float = 0.0) -> tuple[Mask, Floats]:
    """What is allowed in each state, and at which risk: (S, A) each.

    Args:
        model: choice a of every state is action a.
        unsafe: which states, (S,), must not be reached.
        tolerance: where no choice is safe for ever, one is allowed up to (1 + tolerance) times the least risk.
    """
    if tolerance < 0.0:
        raise ConfigError(f"tolerance is {tolerance:g}; it is at least 0")
    count = len(model.action_names)
    lost = losing(model.choice_start, model.row_start, model.columns, unsafe)
    chosen = model.choice_start[:-1].copy()
    for _ in range(_IMPROVEMENTS):
        value = _value(model.chain(chosen), unsafe)
        risk = _risks(model, value, unsafe).reshape(-1, count)
        current = risk[np.arange(len(chosen)), chosen - model.choice_start[:-1]]
        better = risk.min(axis=1) < current - _IMPROVED * np.maximum(current, 1e-300)
        if not better.any():
            break
        chosen = np.where(better, model.choice_start[:-1] + risk.argmin(axis=1), chosen)
    else:
        raise ConfigError(f"the least risk was not found in {_IMPROVEMENTS} improvements: the model is ill-conditioned")
    to_lost = np.bincount(_owners(model), weights=lost[model.columns], minlength=model.num_choices)
    safe = to_lost.reshape(-1, count) == 0.0
    risk[safe & ~unsafe[:, None]] = 0.0
    allowed = risk <= risk.min(axis=1, keepdims=True) * (1.0 + tolerance)
    return np.where((~lost)[:, None], safe, allowed), risk


def _value(chain: Chain, unsafe: Mask) -> Floats:
    """How likely a policy's chain is to reach what is unsafe, at most: 0 only where it cannot."""
    bounds = until(chain, np.ones(len(unsafe), np.bool_), unsafe)
    if np.any(bounds.high - bounds.low > _ACCURATE):
        raise ConfigError("the risk of a policy could not be computed to 1e-6: the model is ill-conditioned")
    return bounds.high


def _risks(model: FiniteModel, value: Floats, unsafe: Mask) -> Floats:
    """How likely each choice, (C,), leads to what is unsafe when the policy behind `value` goes on."""
    owner = _owners(model)
    risk = np.bincount(owner, weights=model.probabilities * value[model.columns], minlength=model.num_choices)
    return np.where(np.repeat(unsafe, np.diff(model.choice_start)), 1.0, np.minimum(risk, 1.0))


def _owners(model: FiniteModel) -> Ints:
    """The choice of each transition."""
    return np.repeat(np.arange(model.num_choices), np.diff(model.row_start))
