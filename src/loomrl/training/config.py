"""How a policy is trained, and how a training is shared by several learners."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from loomrl.environment.config import BoundaryConfig, EpisodeBounds
from loomrl.environment.seeds import VALIDATION_SEEDS
from loomrl.system.schema import Section

NO_END = 10**30  # environment steps: none takes so many, and towards them linear schedules stay where they are
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # of a Ray resource
# Fields of `distributed` that change nothing of what is learnt.
WHERE_IT_RUNS = frozenset(
    {
        *("address", "resources_per_learner", "hang_timeout_seconds", "max_restarts", "resize_interval_seconds"),
        *("rollout_workers_per_learner", "resources_per_worker"),
    }
)


class ValidationConfig(Section):
    """Greedy episodes during training; training stops when their mean return stagnates.

    Attributes:
        interval_env_steps: environment steps between two validations.
        first_seed: the reset seed of the first episode; the others follow it.
        patience: training stops after so many validations in a row without progress; None: it never does.
        min_improvement: a mean return is progress where it is more than this above the last that was.
        stop_at_return: training stops when the mean return reaches it in `stop_after_validations` in a row; None:
            never.
        objective: the key of a number in each step's info, which is summed over an episode and recorded; None: nothing.
        success_return: from which return on an episode succeeds; None: what the environment's `is_success` says, else
            its `reward_threshold`.
    """

    interval_env_steps: int = Field(default=20_000, ge=1)
    num_episodes: int = Field(default=16, ge=1)
    first_seed: int = Field(default=VALIDATION_SEEDS.start, ge=0)
    patience: int | None = Field(default=None, ge=1)  # validations without improvement; None never stops
    min_improvement: float = Field(default=0.0, ge=0)
    stop_at_return: float | None = None  # good enough: stop when the mean reaches it ...
    stop_after_validations: int = Field(default=1, ge=1)  # ... in this many validations in a row
    objective: str | None = None  # a number in the info of each step, summed over an episode, to be recorded beside it
    success_return: float | None = None  # default: the environment's `is_success`, else its reward_threshold

    @property
    def seeds(self) -> range:
        """Reset seeds of the validation episodes: every validation plays the same ones."""
        return range(self.first_seed, self.first_seed + self.num_episodes)


class CompressionConfig(Section):
    """How learners compress what they exchange: gradients, or how far their parameters moved.

    `fp16`, `bf16` and `powersgd` (Vogels et al., arXiv 1905.13727) are torch's; `rank` is that of powersgd's thin
    matrices. `int8` sends bytes, with a scale for every block; `top_k` sends the largest numbers only, `share` of all.
    What either leaves out is added to the next message (error feedback, Karimireddy et al., arXiv 1901.09847).
    """

    method: Literal["none", "fp16", "bf16", "powersgd", "int8", "top_k"] = "none"
    rank: int = Field(default=1, ge=1)  # of powersgd
    share: float = Field(default=0.01, gt=0, le=1)  # of the numbers that top_k sends

    @model_validator(mode="before")
    @classmethod
    def _named(cls, given: Any) -> Any:
        if isinstance(given, str):
            raise ValueError(f"found {given!r}; write it as `{{method: {given}}}`")
        return given

    @model_validator(mode="after")
    def _of_the_method(self) -> "CompressionConfig":
        for name, method in (("rank", "powersgd"), ("share", "top_k")):
            if self.method != method and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} belongs to `method: {method}`; found {self.method!r}; leave it out")
        return self


class DistributedConfig(Section):
    """Learners that share one training. `training.parameters` are of all of them: `num_envs`, `batch_size` and
    `replay_capacity` are divided by `num_learners`.

    With `sync_frequency: 1` every gradient is that of all learners' batches. Above, learners take so many gradient
    steps of their own before their parameters become one: their mean, or with `outer_learning_rate` and
    `outer_momentum` what SGD with Nesterov's momentum makes of how far they moved in the mean (DiLoCo, Douillard et
    al., arXiv 2311.08105).

    With `min_learners` there are as many of them as the cluster has room for, from that up to `num_learners`; what
    cannot be divided by their number is rounded up.

    Attributes:
        min_learners: None: there are always `num_learners`.
        resize_interval_seconds: how often Ray looks whether there is room for more learners.
        rollout_workers_per_learner: processes that collect for each learner; 0: it collects itself.
        resources_per_worker: Ray's names and amounts; `resources_per_learner` likewise.
        max_staleness: how many updates the policy of a rollout may lack; with 1 workers collect while the learner
            learns.
        address: `HOST:PORT` of a Ray cluster's head, or "auto" for the one this machine belongs to; None: one is begun.
        hang_timeout_seconds: a learner or worker that is busy for longer is ended.
        max_restarts: how often training continues from the last checkpoint after a learner was lost.
    """

    num_learners: int = Field(default=2, ge=1)
    min_learners: int | None = Field(default=None, ge=1)  # None: always `num_learners`
    resize_interval_seconds: float = Field(default=60.0, gt=0)  # how often it is seen whether there is room for more
    sync_frequency: int = Field(default=1, ge=1)  # gradient steps from one synchronisation to the next
    outer_learning_rate: float = Field(default=1.0, gt=0)
    outer_momentum: float = Field(default=0.0, ge=0, lt=1)
    compression: CompressionConfig = Field(default_factory=CompressionConfig)
    rollout_workers_per_learner: int = Field(default=0, ge=0)  # that collect for it; 0: it collects itself
    resources_per_worker: dict[str, Amount] = Field(default_factory=lambda: {"CPU": 1.0})
    max_staleness: int = Field(default=0, ge=0, le=1)  # updates a rollout's policy may lack; 1: collected meanwhile
    # Of a Ray cluster's head, or "auto" for the one this machine belongs to; None: begin one.
    address: str | None = Field(default=None, pattern=r"^(auto|[^:/]+:\d+)$")
    resources_per_learner: dict[str, Amount] = Field(default_factory=lambda: {"CPU": 1.0})
    hang_timeout_seconds: float = Field(default=300.0, gt=0)  # who is busy for longer is ended: an environment hangs
    max_restarts: int = Field(default=3, ge=0)  # from the last checkpoint, after a learner was lost

    @model_validator(mode="after")
    def _consistent(self) -> "DistributedConfig":
        if self.min_learners is not None and self.min_learners > self.num_learners:
            raise ValueError(
                f"min_learners {self.min_learners} is above num_learners {self.num_learners}, the most there may be; "
                "lower it"
            )
        if self.min_learners is not None and self.rollout_workers_per_learner:
            raise ValueError(
                "min_learners: Ray does not count rollout workers when it sees how many learners there is room for; "
                "leave min_learners or rollout_workers_per_learner out"
            )
        if self.sync_frequency == 1 and (self.outer_learning_rate, self.outer_momentum) != (1.0, 0.0):
            raise ValueError(
                "outer_learning_rate, outer_momentum: with `sync_frequency: 1` gradients are joined, there is no outer "
                "step; leave them out, or raise sync_frequency"
            )
        if self.resources_per_learner.get("CPU", 0.0) <= 0.0:
            raise ValueError("resources_per_learner: a learner needs a CPU, or a part of one; set CPU above 0")
        if self.max_staleness and not self.rollout_workers_per_learner:
            raise ValueError(
                "max_staleness: a learner that collects itself does so between updates; leave it out, or set "
                "rollout_workers_per_learner above 0"
            )
        return self

    @property
    def fewest_learners(self) -> int:
        """The smallest number of learners that training goes on with: `min_learners`, else `num_learners`."""
        return self.num_learners if self.min_learners is None else self.min_learners

    def resources(self, num_learners: int) -> dict[str, float]:
        """The amounts that `num_learners` learners and their workers need together, by Ray's names of resources."""
        needed: dict[str, float] = {}
        num_workers = num_learners * self.rollout_workers_per_learner
        for number, each in ((num_learners, self.resources_per_learner), (num_workers, self.resources_per_worker)):
            for name, amount in each.items():
                needed[name] = needed.get(name, 0.0) + number * amount
        return needed


def _interval(given: dict[str, Any]) -> int:
    """Of a long training about a hundred states are saved: each costs a little."""
    return max(20_000, int(given["total_env_steps"]) // 100)


class TrainingConfig(Section):
    """How a policy is trained. `parameters` are the algorithm's own config, which the algorithm checks.

    `boundaries` and `max_episode_cost` are of the episodes that are learnt from; validations play without them.

    Attributes:
        checkpoint_interval_env_steps: environment steps between two checkpoints; by default a hundredth of all, and
            20,000 at least.
        checkpoint_interval_seconds: checkpoints that come sooner after the last one are not saved; 0: each is.
        keep_checkpoints: how many of the newest are kept.
        max_episode_cost: an episode ends once it has cost more; None: it may cost anything.
        distributed: several learners on Ray; None: one learner, in the stage's own process.
    """

    algorithm: str = "ppo"
    seed: int = Field(default=0, ge=0)
    total_env_steps: int = Field(ge=1)
    checkpoint_interval_env_steps: int = Field(default_factory=_interval, ge=1)
    checkpoint_interval_seconds: float = Field(default=5.0, ge=0)  # pass over those that come sooner; 0: save each
    keep_checkpoints: int = Field(default=2, ge=1)
    validation: ValidationConfig = Field(default_factory=ValidationConfig)
    boundaries: list[BoundaryConfig] = Field(default_factory=list)
    max_episode_cost: float | None = Field(default=None, ge=0)  # an episode ends once it has cost more
    parameters: dict[str, Any] = Field(default_factory=dict)
    distributed: DistributedConfig | None = None  # several learners on Ray; None: one, in the stage's own process

    @property
    def bounds(self) -> EpisodeBounds | None:
        """The bounds of training episodes: their boundaries and limits on cost; None where there are none."""
        if not self.boundaries and self.max_episode_cost is None:
            return None
        return EpisodeBounds(tuple(self.boundaries), self.max_episode_cost)
