"""The training loop: collect, update, validate, and a checkpoint from which it goes on to the bit.

Training goes in segments, one for each checkpoint. Episodes go on from one segment to the next, and in a run that is
resumed: a checkpoint holds the state of environments that are arrays or MuJoCo's simulations, and of all others the
seed of the episode under way and the actions taken in it, which they take again (`loomrl.environment.vector.episodes`).

Environments that have neither (EnvPool's, and vectors that Gymnasium's registry names) cannot be saved. For them every
segment begins with environments as good as new, seeded from the run's seed and the segment's number, and episodes under
way at its end are truncated: the last step bootstraps from its true successor, as at a time limit, and they do not
count in the metrics. Training says so.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np

from loomrl.algorithms.base import Algorithm, below
from loomrl.algorithms.peers import ALONE, LearnerGroup
from loomrl.errors import ArtifactError, ConfigError, EnvironmentFault, LoomRLError
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.collecting import Collecting, OwnEnvironments
from loomrl.training.processes import union
from loomrl.training.rows import CurveRows
from loomrl.training.seeds import Purpose, derive
from loomrl.training.validation import MakeEnvs, Validation
from loomrl.types import Json, Trajectory

OnRow = Callable[[Json], None]
_PEERS = "peers."  # arrays of a checkpoint
ENVIRONMENTS = "environments."  # (B, ...) each


class TrainingLoop:
    """Runs an algorithm until a limit, stagnation or a request to stop.

    `on_update` and `on_validation` are called with each row of the curves; control never depends on them. `stop_reason`
    is None until training has ended. `total_env_steps` and `total_episodes` are the limits; None does not limit.
    Without `segment_env_steps` training is one segment, of any length. With `needs_costs` the first rollout must tell a
    cost.

    `process` describes the process the loop runs in; `processes` are all that have computed something of what was
    learnt. `env_steps` and `num_episodes` count what was learnt from, `rows` are the curve, and `cuts_episodes` says
    whether episodes were ended at a checkpoint, because their environments cannot be saved.

    With `peers` it is one of several loops that learn one policy: limits, counts and rows are those of all of them, and
    the first one validates. With `collecting` others collect for it, and `make_envs` is not called.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        make_envs: MakeEnvs,
        *,
        seed: int,
        total_env_steps: int | None,
        segment_env_steps: int | None,
        validation: Validation | None,
        total_episodes: int | None = None,
        needs_costs: bool = False,
        on_update: OnRow = lambda _row: None,
        on_validation: OnRow = lambda _row: None,
        peers: LearnerGroup = ALONE,
        collecting: Collecting | None = None,
        process: Json | None = None,
    ) -> None:
        self.algorithm, self.validation, self._peers = algorithm, validation, peers
        self._seed = seed
        self._collecting = collecting or OwnEnvironments(algorithm, make_envs, algorithm.num_envs)
        self._total_env_steps, self._total_episodes = total_env_steps, total_episodes
        rollout_size = algorithm.num_envs * algorithm.rollout_length * peers.num_learners
        self._segment_updates = math.ceil(segment_env_steps / rollout_size) if segment_env_steps else None
        self._needs_costs = needs_costs
        self._on_update, self._on_validation = on_update, on_validation
        self._rng = np.random.default_rng(derive(seed, Purpose.ACTIONS, peers.rank))
        self.env_steps = 0
        self.num_episodes = 0
        self.stop_reason: str | None = None
        self.rows = CurveRows()
        self.cuts_episodes = False  # at a checkpoint, of environments that cannot be saved
        self._process = [process] if process is not None else []
        self.processes: list[Json] = []
        self._segment = 0

    def run(self, due: Callable[[], bool] = lambda: True) -> Iterator[Checkpoint]:
        """Train, yielding a checkpoint after every segment for which one is `due`, and one when training has ended. An
        error ends training and closes the environments; checkpoints that were yielded before stay good.

        `due` is called before the state is built, which copies all that is in memory, a replay too.

        Raises:
            EnvironmentFault: when an environment breaks its API, or gives a reward that float32 cannot hold.
            ConfigError: when costs are needed, and the first rollout tells none.
            LoomRLError: when a metric or an action is not finite, or rollout workers are lost again and again.
            ArtifactError: when the algorithm's files cannot be written.
        """
        with closing(self._collecting):
            while self.stop_reason is None:
                self._run_segment()
                self._segment += 1
                self.processes = union(self.processes, self._process, self._collecting.processes())
                if self.stop_reason is not None or self._peers.broadcast_from_first(lambda: {"due": due()})["due"]:
                    yield self.checkpoint()

    def stop(self, reason: str) -> None:
        """End training after the update under way; `reason` becomes `stop_reason`. May be called from another
        thread."""
        self.stop_reason = reason

    def _run_segment(self) -> None:
        first_env = self._peers.rank * self.algorithm.num_envs  # of all learners' environments
        seed = derive(self._seed, Purpose.EPISODES, self._segment) + first_env
        collector = self._collecting.begin(seed, self._segment_updates)
        for update in itertools.count(1):
            trajectory = collector.collect(self.algorithm.rollout_length, self._rng)
            last = update == self._segment_updates
            if last and not self._collecting.is_resumable:
                trajectory, self.cuts_episodes = trajectory.cut(), True
            self._update(trajectory, collector.finished, last)
            collector.finished.clear()
            self._validate()
            if last or self.stop_reason is not None:
                return

    def _update(self, trajectory: Trajectory, finished: list[tuple[float, int]], last: bool) -> None:
        step = self.env_steps + trajectory.num_transitions * self._peers.num_learners
        _require_rewards(trajectory, step)
        if self._needs_costs and self.env_steps == 0:
            _require_costs(trajectory)
        metrics = self.algorithm.update(trajectory, self._rng)
        self.env_steps = step
        metrics, episodes = self._joined(metrics, self._collecting.counts(), finished)
        self.num_episodes += round(episodes.num)
        if last or self._validates():  # which the episodes decide, too
            self._peers.synchronise()
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise LoomRLError(
                    f"training: {name} is {value} after {step} environment steps; saved checkpoints are intact; "
                    "lower learning_rate, or look at the rewards and observations of the environment"
                )
        if episodes.num:
            metrics |= {
                "episode_return": episodes.returns / episodes.num,
                "episode_length": episodes.lengths / episodes.num,
            }
        metrics |= self._peers.metrics()
        row: Json = {"step": step, "num_episodes": self.num_episodes, **metrics}
        self.rows.add(row)
        self._on_update(row)

    def _joined(
        self, metrics: dict[str, float], counts: dict[str, float], finished: list[tuple[float, int]]
    ) -> tuple[dict[str, float], "_Episodes"]:
        """In one meeting: metrics' means over the learners, the sums of counts, where there was anything to count, and
        the episodes of all of them."""
        own = [*metrics.values(), *counts.values(), *_Episodes.of(finished)]
        means = self._peers.all_reduce_mean(np.array(own))
        sums = means * self._peers.num_learners
        first_sum, last_sum = len(metrics), len(metrics) + len(counts)
        joined = dict(zip(metrics, means[:first_sum].tolist(), strict=True))
        counted = zip(counts, sums[first_sum:last_sum].tolist(), strict=True)
        return joined | {name: value for name, value in counted if value}, _Episodes(*sums[last_sum:].tolist())

    def _validate(self) -> None:
        """Decide whether training ends, after a validation where one is due or it is the last chance for one."""
        ended = self._limit_reached()
        validation = self.validation
        if validation is not None and self._validates():
            policy, cost_limit = self.algorithm.policy, self.algorithm.cost_limit
            row = self._peers.broadcast_from_first(lambda: validation.play(policy, self.env_steps, cost_limit))
            validation.judge(row, policy)
            self._on_validation(row)
            ended = ended or validation.stop_reason()
        self.stop_reason = self.stop_reason or ended

    def _validates(self) -> bool:
        """Whether a validation is due, or it is the last chance for one."""
        return self.validation is not None and (
            self.validation.due(self.env_steps) or self._limit_reached() is not None
        )

    def _limit_reached(self) -> str | None:
        if self._total_env_steps is not None and self.env_steps >= self._total_env_steps:
            return "total_env_steps"
        if self._total_episodes is not None and self.num_episodes >= self._total_episodes:
            return "total_episodes"
        return None

    # --- state ---

    def checkpoint(self) -> Checkpoint:
        """The state of the training between two segments: all that a bit-identical continuation needs."""
        state = self.algorithm.state_dict()
        arrays = {f"algorithm.{name}": value for name, value in state.items() if isinstance(value, np.ndarray)}
        values: Json = {
            "env_steps": self.env_steps,
            "num_episodes": self.num_episodes,
            "segment": self._segment,
            "cuts_episodes": self.cuts_episodes,
            "processes": self.processes,
            "stop_reason": self.stop_reason,
            "rows": self.rows.state_dict(),
            "rng": self._rng.bit_generator.state,
            "algorithm": {name: value for name, value in state.items() if not isinstance(value, np.ndarray)},
        }
        arrays |= {f"{_PEERS}{name}": np.asarray(value) for name, value in self._peers.state_dict().items()}
        if self.stop_reason is None:  # else no episode goes on
            arrays |= {f"{ENVIRONMENTS}{name}": value for name, value in self._collecting.state_dict().items()}
        if self.validation is not None:
            values["validation"] = self.validation.state_dict()
            arrays |= {f"best.{name}": value for name, value in self.validation.best.items()}
        return Checkpoint(self.env_steps, arrays, values)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint of an equal loop. One of a training that has ended leaves the algorithm as it is:
        it learns no more, and its files may be gone.

        Raises:
            ArtifactError: when the algorithm's files do not hold what the checkpoint refers to, or the checkpoint is of
                an older LoomRL, which ended all episodes at checkpoints; nothing has changed.
        """
        values = checkpoint.values
        if "cuts_episodes" not in values:
            raise ArtifactError(
                f"the checkpoint at step {checkpoint.step} is of an older LoomRL, which ended all episodes at a "
                "checkpoint; finish that training with it, or begin anew"
            )
        if values["stop_reason"] is None:
            self.algorithm.load_state_dict({**below("algorithm.", checkpoint.arrays), **values["algorithm"]})
            self._peers.load_state_dict(below(_PEERS, checkpoint.arrays))
            self._collecting.load_state_dict(below(ENVIRONMENTS, checkpoint.arrays))
        self.env_steps, self.num_episodes = values["env_steps"], values["num_episodes"]
        self._segment, self.stop_reason = values["segment"], values["stop_reason"]
        self.cuts_episodes, self.processes = values["cuts_episodes"], values["processes"]
        self.rows.load_state_dict(values["rows"])
        self._rng.bit_generator.state = values["rng"]
        if self.validation is not None:
            self.validation.load_state_dict(values["validation"], below("best.", checkpoint.arrays))


class _Episodes(NamedTuple):
    """Sums over the episodes that have ended: their number, returns and lengths."""

    num: float
    returns: float
    lengths: float

    @classmethod
    def of(cls, finished: list[tuple[float, int]]) -> "_Episodes":
        """The sums over episodes that are given as (return, length)."""
        return cls(float(len(finished)), *np.array(finished or [(0.0, 0)]).sum(0).tolist())


def _require_rewards(trajectory: Trajectory, step: int) -> None:
    """Before anything is learnt from them: normalised rewards hide a fault."""
    if (found := trajectory.unusable_reward()) is not None:
        environment, reward = found
        raise EnvironmentFault(
            f"training: environment {environment} gave reward {reward}, which float32 cannot hold, within {step} "
            "environment steps; saved checkpoints are intact; clip or scale rewards"
        )


def _require_costs(trajectory: Trajectory) -> None:
    """Once costs are told, a step that tells none costs nothing."""
    if trajectory.cost is None:
        raise ConfigError(
            "training.max_episode_cost and boundaries on `cost` need a cost beside the reward: the environment gave no "
            f'info["cost"] in {trajectory.num_transitions} steps; return one, 0.0 where a step costs nothing'
        )
