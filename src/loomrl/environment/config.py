"""Which environment a policy is for."""

from pathlib import Path

from pydantic import Field

from loomrl.environment.backends import TIMEOUT_SECONDS, BackendName
from loomrl.schema import Section


class EnvironmentConfig(Section):
    """`id` is a Gymnasium id, or a name registered in LoomDB (then `version` picks one, else the newest)."""

    id: str
    version: str | None = None
    entry_point: str | None = None  # "module:Class": an environment registered nowhere
    path: Path | None = None  # folder with the user's code, relative to the project; put on sys.path
    kwargs: dict[str, object] = Field(default_factory=dict)
    max_episode_steps: int | None = Field(default=None, ge=1)
    reward_threshold: float | None = None
    frame_stack: int = Field(default=1, ge=1)  # observe the last so many observations
    fingerprint_episodes: int = Field(default=8, ge=1)
    backend: BackendName = "auto"  # how many of them are stepped at once; see docs/environments.md
    timeout_seconds: float = Field(default=TIMEOUT_SECONDS, gt=0)  # for one answer, with the back-end "processes"
    fingerprint_steps: int = Field(default=200, ge=1)
