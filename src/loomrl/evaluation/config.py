"""How a policy is evaluated."""

from pydantic import Field

from loomrl.environment.seeds import EVALUATION_SEEDS
from loomrl.system.schema import Section


class EvaluationConfig(Section):
    """Episodes on the held-out seeds `first_seed ... first_seed + num_episodes - 1`."""

    num_episodes: int = Field(default=100, ge=2)
    first_seed: int = Field(default=EVALUATION_SEEDS.start, ge=0)
    num_envs: int = Field(default=25, ge=1)  # stepped together
    confidence: float = Field(default=0.95, gt=0.5, lt=1)  # of all intervals
    bootstrap_replicates: int = Field(default=2_000, ge=100)
    success_return: float | None = None  # default: the environment's reward_threshold
    render: bool = True  # the median episode, as a GIF
    max_frames: int = Field(default=125, ge=2, le=250)  # of the rendered episode
    trajectory_episodes: int = Field(default=20, ge=1)  # episodes whose steps are kept for the data gate
    enforce_observation_bounds: bool = True  # False: the data gate only demands that observations are finite

    @property
    def seeds(self) -> range:
        """The reset seeds of the evaluation's episodes, one for each."""
        return range(self.first_seed, self.first_seed + self.num_episodes)
