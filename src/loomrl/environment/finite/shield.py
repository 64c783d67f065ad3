"""What a shield allows: looked up wherever somebody acts, in training and in the policy server. Needs numpy only."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import ArtifactError, ConfigError
from loomrl.system.files import write_atomic

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
_WRONG = "is no shield, or was damaged; build it again"


class NoState(ValueError):
    """An observation is of no state of the shield's model: nothing is known to be safe there."""


@dataclass(frozen=True)
class Shield:
    """What is allowed where: `risk[s, a]` is the least probability to become unsafe after action a in state s.

    `instead[s, a]` is the action that is taken where a was chosen: a itself where it is allowed, else the allowed one
    of least risk.

    Raises:
        ConfigError: when two states are observed alike.
    """

    observations: NDArray[Any]  # (S, *obs)
    allowed: Mask  # (S, A)
    risk: Floats  # (S, A)

    def __post_init__(self) -> None:
        places = {self._key(obs): index for index, obs in enumerate(self.observations)}
        if len(places) < len(self.observations):
            raise ConfigError(
                "two states of the model are observed alike, so an observation does not say what is allowed"
            )
        safest = np.where(self.allowed, self.risk, np.inf).argmin(axis=1)
        own = np.broadcast_to(np.arange(self.allowed.shape[1]), self.allowed.shape)
        object.__setattr__(self, "_places", places)
        object.__setattr__(self, "instead", np.where(self.allowed, own, safest[:, None]))

    def _key(self, obs: NDArray[Any]) -> bytes:
        return (np.asarray(obs, self.observations.dtype) + 0).tobytes()  # a zero has no sign

    def state_of(self, obs: NDArray[Any]) -> int:
        """The state behind one observation, (*obs).

        Raises:
            NoState: for an observation of no state of the model.
        """
        place = self._places.get(self._key(obs))  # type: ignore[attr-defined]
        if place is None or not np.array_equal(self.observations[place], obs):  # a cast may have rounded
            raise NoState(f"observation {np.asarray(obs).tolist()} is no state of the shield's model")
        return int(place)

    def rows(self, obs: NDArray[Any]) -> NDArray[np.int64]:
        """What is taken where each action was chosen, (B, A), after observations (B, *obs).

        Raises:
            NoState: for an observation of no state of the model.
        """
        rows: NDArray[np.int64] = self.instead[[self.state_of(one) for one in obs]]  # type: ignore[attr-defined]
        return rows

    def correct(self, obs: NDArray[Any], actions: NDArray[Any]) -> NDArray[np.int64]:
        """Actions, (B,), with those that are not allowed after `obs`, (B, *obs), replaced by the one of least risk.

        Raises:
            NoState: for an observation of no state of the model.
            IndexError: for an action that the model does not have.
        """
        chosen = np.asarray(actions, np.int64)
        if (chosen < 0).any() or (chosen != actions).any():
            raise IndexError(f"actions {actions} are not all of the model's, which are whole numbers from 0 on")
        return self.rows(obs)[np.arange(len(chosen)), chosen]

    @property
    def num_safe(self) -> int:
        """The number of states in which what is unsafe can be kept out of reach for ever."""
        return int(np.count_nonzero(self.risk.min(axis=1) == 0.0))

    def to_bytes(self) -> bytes:
        """The shield as a file of arrays in the safetensors format; equal shields give equal bytes."""
        from safetensors.numpy import save

        arrays = {"observations": self.observations, "allowed": self.allowed, "risk": self.risk}
        return save({name: np.ascontiguousarray(array) for name, array in arrays.items()})

    def save(self, path: Path) -> None:
        """Write the shield to a file, atomically, in the format of `to_bytes`.

        Raises:
            ArtifactError: when it cannot be written; a file that was there is as it was.
        """
        write_atomic(path, self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> "Shield":
        """Read what `save` wrote.

        Raises:
            ArtifactError: when there is no such file, or it is damaged.
            ConfigError: when two of its states are observed alike.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            arrays = load(path.read_bytes())
            return cls(arrays["observations"], arrays["allowed"], arrays["risk"])
        except (OSError, SafetensorError, KeyError) as error:
            raise ArtifactError(f"{path} {_WRONG} ({error})") from error
