"""What a language policy is trained on in the gym, and how: `GymTrainingConfig`."""

from pathlib import Path

from pydantic import Field, model_validator

from loomrl.errors import ConfigError
from loomrl.gym.curriculum import CurriculumConfig
from loomrl.gym.domains import get_domain
from loomrl.gym.facade import EnvironmentType
from loomrl.gym.tasks import NUM_LEVELS
from loomrl.system.schema import ArgumentSection

# Short prompts and answers: what a small policy that begins from nothing can learn.
SHORT_KINDS: dict[str, tuple[str, ...]] = {
    "math": ("addition",),
    "game": ("row_puzzle",),
    "tool_call": ("product",),
    "language": ("word",),
}


class GymTrainingConfig(ArgumentSection):
    """Settings of a training in the gym: domains, curriculum, limits of an episode, evaluation and checkpoints.

    Attributes:
        environments_per_type: environments of each domain.
        enabled_env_types: the domains; a third party's by its name.
        curriculum_learning: False: the difficulty stays at `difficulty`, a level from 0.
        curriculum_window: answers of a domain between two decisions on its difficulty.
        kinds: the kinds of tasks by domain; all where none are named.
        group_size: attempts at each task.
        max_turns: messages of the policy in an episode.
        max_sequence_tokens: prompt, messages and replies of an episode together.
        reward_limits: scores beyond them are cut to them.
        max_staleness: policy versions that may lie between an episode and learning from it.
        held_out_share: the share of all tasks that is never trained on.
        levels: of what is shown in the warm start and asked in evaluation; by default `difficulty`.
        evaluation_tasks: of each domain.
        warm_start_accuracy: the share of tasks that must be solved in every domain before reinforcement begins.
        checkpoint_folder: None: nothing is saved.
        checkpoint_interval: in iterations.

    Raises:
        ConfigError: naming the field, what was found and what is allowed.
    """

    environments_per_type: int = Field(default=3, ge=1)
    # a domain of others by its name
    enabled_env_types: tuple[EnvironmentType | str, ...] = (EnvironmentType.MATH,)
    curriculum_learning: bool = True  # False: difficulty stays at `difficulty`
    target_success_rate: float = Field(default=0.8, gt=0.0, lt=1.0)
    # the level all begin with; the easiest one of several kinds has but a hundred tasks, which are learnt by heart
    difficulty: int = Field(default=1, ge=0, lt=NUM_LEVELS)
    curriculum_window: int = Field(default=40, ge=1)  # answers of a domain between two decisions on its difficulty
    kinds: dict[str, tuple[str, ...]] = Field(default_factory=lambda: dict(SHORT_KINDS))  # all where none are named
    group_size: int = Field(default=4, ge=1)  # attempts at each task: one group of the hub
    max_turns: int = Field(default=8, ge=1)  # messages of the policy in an episode
    max_message_tokens: int = Field(default=72, ge=1)
    max_sequence_tokens: int = Field(default=192, ge=2)  # prompt, messages and replies of an episode
    reward_limits: tuple[float, float] = (0.0, 1.0)  # scores beyond them are cut to them
    max_staleness: int = Field(default=1, ge=0)  # policy versions between an episode and learning from it
    held_out_share: float = Field(default=0.2, gt=0.0, lt=1.0)  # of all tasks: never trained on
    # of what is shown in the warm start, and of what is asked in evaluation; by default the one training begins with
    levels: tuple[int, ...] = Field(default_factory=lambda given: (given["difficulty"],))
    evaluation_tasks: int = Field(default=200, ge=1)  # of each domain
    warm_start_accuracy: float = Field(default=0.2, ge=0.0, lt=1.0)  # of every domain, before reinforcement begins
    checkpoint_folder: Path | None = None
    checkpoint_interval: int = Field(default=10, ge=1)  # iterations

    @model_validator(mode="after")
    def _is_possible(self) -> "GymTrainingConfig":
        if not self.enabled_env_types:
            raise ValueError("enabled_env_types is empty; name one or more, such as EnvironmentType.MATH")
        if len(set(self.domains)) != len(self.domains):
            raise ValueError(f"enabled_env_types names a domain twice: {', '.join(self.domains)}")
        if not self.reward_limits[0] < self.reward_limits[1]:
            raise ValueError(f"reward_limits {list(self.reward_limits)}: the first must lie below the second")
        if self.max_prompt_tokens < 1:
            raise ValueError(
                f"max_sequence_tokens {self.max_sequence_tokens} leaves no prompt beside messages of "
                f"max_message_tokens {self.max_message_tokens}; raise the first"
            )
        if not self.levels or not set(self.levels) <= set(range(NUM_LEVELS)):
            raise ValueError(f"levels {list(self.levels)}: levels from 0 to {NUM_LEVELS - 1}")
        return self

    @property
    def max_prompt_tokens(self) -> int:
        """The most tokens of dialogue that may precede a message of the policy."""
        return self.max_sequence_tokens - self.max_message_tokens

    @property
    def domains(self) -> list[str]:
        """The names of the enabled domains, in their order."""
        return [one.value if isinstance(one, EnvironmentType) else one for one in self.enabled_env_types]

    def kinds_of(self, domain: str) -> tuple[str, ...]:
        """The kinds of a domain's tasks that are drawn; an empty tuple means all.

        Raises:
            ConfigError: for a domain or a kind there is not, and for one whose tasks are pictures.
        """
        found = get_domain(domain)
        if found.picture_shape is not None:
            raise ConfigError(
                f"enabled_env_types: {domain} asks about pictures, and the policy reads text; leave it out"
            )
        kinds = self.kinds.get(domain, ())
        found.kinds_at(self.difficulty, kinds)
        return kinds

    def curriculum(self, first_level: int) -> CurriculumConfig:
        """The config of a curriculum that begins at level `first_level`, and stays there without
        `curriculum_learning`."""
        last = NUM_LEVELS - 1 if self.curriculum_learning else first_level
        return CurriculumConfig(
            target_success_rate=self.target_success_rate,
            window=self.curriculum_window,
            margin=min(0.1, self.target_success_rate / 2, (1 - self.target_success_rate) / 2),
            first_level=first_level,
            last_level=last,
        )
