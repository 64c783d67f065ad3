"""Processes that are a torch process group, and what they do in tests of learners that meet."""

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from gymnasium.spaces import Box, Discrete

from loomrl.algorithms import dqn, ppo, ppo_lagrangian, recurrent_ppo, sac
from loomrl.algorithms.dqn import learner as dqn_learner
from loomrl.algorithms.peers import ALONE, LayerWeights, LearnerGroup, Moments
from loomrl.algorithms.replay.spec import Transitions
from loomrl.algorithms.sac import learner as sac_learner
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.config import DistributedConfig
from loomrl.training.distributed.learners.group import DistributedLearnerGroup
from loomrl.training.distributed.learners.joint_checkpoints import divided, part_of
from loomrl.training.distributed.learners.learner import DistributedLearner, LearnerTask
from loomrl.training.distributed.learners.watchdog import Watchdog
from loomrl.types import Json, Trajectory
from tests.support.trajectories import made_up

OBSERVATION = Box(-10.0, 10.0, (3,), np.float32)
ACTIONS = {"discrete": Discrete(4), "box": Box(-0.5, 0.5, (2,), np.float32)}
NUM_ENVS, NUM_STEPS = 4, 64  # as many environments as `made_up` has
SEQUENCE = 8  # steps
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "torch": (ppo, {"engine": "torch"}),
    "compiled": (ppo, {"engine": "compiled"}),
    "recurrent": (recurrent_ppo, {"memory_size": 8, "sequence_length": SEQUENCE}),
    # Each learner knows the length of its own episodes only, so the multiplier stays where it is here.
    "costs": (ppo_lagrangian, {"initial_multiplier": 0.5, "multiplier_learning_rate": 1e-12}),
}


class World:
    """So many processes; `run` calls a function of this module in the first few of them."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "torch._dynamo"])  # once, not in every process
        self._folder = tempfile.TemporaryDirectory()
        pipes = [context.Pipe() for _ in range(size)]
        self._ends = [end for end, _ in pipes]
        arguments = [(rank, size, Path(self._folder.name) / "store", end) for rank, (_, end) in enumerate(pipes)]
        self._members = [context.Process(target=_member, args=given, daemon=True) for given in arguments]

    def __enter__(self) -> Self:
        for member in self._members:
            member.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self._members:
            member.kill()
            member.join()
        self._folder.cleanup()

    def run(self, function: Callable[..., Any], *arguments: Any, size: int) -> list[Any]:
        """Call `function(group, *arguments)` in `size` processes; what each returned, in the order of ranks."""
        for end in self._ends:
            end.send((function, arguments, size))
        answers = [end.recv() for end in self._ends]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers[:size]


def _member(rank: int, size: int, store: Path, end: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=size)
    groups: dict[int, Any] = {}
    while True:
        function, arguments, members = end.recv()
        if members not in groups:
            groups[members] = dist.new_group([*range(members)])
        try:
            end.send(function(groups[members], *arguments) if rank < members else None)
        except Exception as error:  # noqa: BLE001 - the test tells it
            end.send(error)


def group_of(process_group: Any, **config: Any) -> DistributedLearnerGroup:
    """Learners that are never said to hang."""
    values = {"num_learners": process_group.size(), **config}
    return DistributedLearnerGroup(DistributedConfig.model_validate(values), Watchdog(1e9, print), process_group)


def own_vector(rank: int, call: int = 0, size: int = 1000) -> np.ndarray:
    """What a learner averages in a call."""
    return np.random.default_rng([rank, call]).normal(size=size).astype(np.float32)


# --- what members do ---


def scheduling_classes(process_group: Any) -> dict[str, set[int]]:
    """Of the threads of a learner, by their names."""
    group_of(process_group)
    classes: dict[str, set[int]] = {}
    for thread in Path("/proc/self/task").iterdir():
        name = (thread / "comm").read_text().strip()
        classes.setdefault(name, set()).add(os.sched_getscheduler(int(thread.name)))
    return classes


def averages(process_group: Any, compression: dict[str, Any], calls: int) -> tuple[list[np.ndarray], list[float]]:
    """Means of `own_vector` in so many calls, and the bytes of each."""
    group = group_of(process_group, compression=compression)
    group.register_parameters(np.zeros(1000, np.float32), [LayerWeights(0, 20, 30), LayerWeights(700, 10, 20)])
    group.metrics()
    means, num_bytes = [], []
    for call in range(calls):
        means.append(own_vector(group.rank, call))
        group.all_reduce_gradient(means[-1])
        num_bytes.append(group.metrics()["bytes_sent"])
    return means, num_bytes


def resumed_averages(process_group: Any, compression: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The fourth mean of a group, and of one that was restored from the first's state after three."""
    first, second = (group_of(process_group, compression=compression) for _ in range(2))
    for group in (first, second):
        group.register_parameters(np.zeros(1000, np.float32), [LayerWeights(0, 20, 30), LayerWeights(700, 10, 20)])
    for call in range(3):
        first.all_reduce_gradient(own_vector(first.rank, call))
    second.load_state_dict(first.state_dict())
    vectors = [own_vector(first.rank, 3) for _ in range(2)]
    for group, vector in zip((first, second), vectors, strict=True):
        group.all_reduce_gradient(vector)
    return vectors[0], vectors[1]


def moments(process_group: Any, sizes: list[int]) -> Moments:
    """Of rows that the learners have different numbers of."""
    rank = process_group.rank()
    rows = np.random.default_rng(rank).normal(rank, 1 + rank, (sizes[rank], 3))
    none = Moments(np.zeros(3), np.zeros(3), 0.0)
    return group_of(process_group).all_reduce_moments(Moments.of(rows) if len(rows) else none)


def local_steps(process_group: Any, config: dict[str, Any], counts: list[int]) -> list[np.ndarray]:
    """Parameters after each of several `count_steps(count)`, before which each learner moved its own way."""
    group = group_of(process_group, **config)
    parameters = np.full(4, 10.0 * group.rank, np.float32)  # the first learner's are everyone's
    group.register_parameters(parameters, [])
    seen = [parameters.copy()]
    for count in counts:
        parameters += np.float32(count * (group.rank + 1))
        group.count_steps(count)
        seen.append(parameters.copy())
    return seen


def synchronised(process_group: Any, config: dict[str, Any], calls: int) -> list[np.ndarray]:
    """Parameters after each of several synchronisations, before which each learner moved its own way."""
    group = group_of(process_group, **config)
    parameters = own_vector(group.rank)
    group.register_parameters(parameters, [LayerWeights(0, 20, 30), LayerWeights(700, 10, 20)])
    seen = []
    for call in range(calls):
        parameters += own_vector(group.rank, call)
        group.count_steps(config["sync_frequency"])
        seen.append(parameters.copy())
    return seen


def first_says(process_group: Any) -> dict[str, Any]:
    group = group_of(process_group)
    return group.broadcast_from_first(lambda: {"rank": group.rank, "row": [0.1, None, "due"]})


def updated(process_group: Any, engine: str, action: str, values: dict[str, Any]) -> tuple[Any, ...]:
    """Metrics, weights and gradient of a learner that updates on its share of a joined rollout."""
    group = group_of(process_group)
    share = {"num_envs": NUM_ENVS // group.num_learners, "batch_size": values["batch_size"] // group.num_learners}
    algorithm = built(engine, action, values | share, peers=group)
    metrics = algorithm.update(shared(joined_rollout(engine, action, values), group), OrderOf(group.rank))
    joined = dict(zip(metrics, group.all_reduce_mean(np.array([*metrics.values()])).tolist(), strict=True))
    return joined, algorithm.policy.arrays(), gradient_of(algorithm)


def replayed(process_group: Any, values: dict[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """Metrics and state of an off-policy learner after steps on its share of every joined batch."""
    group = group_of(process_group)
    share = values["batch_size"] // group.num_learners
    return replay_steps(values | {"batch_size": share}, [group.rank], share, group)


def trained(process_group: Any, assignment: LearnerTask, begun: Checkpoint | None = None) -> list[Checkpoint]:
    """What a learner leaves of a whole training, or of its rest; nobody joins it with the others' parts."""
    left: list[Checkpoint] = []

    def call(method: str, *arguments: Any) -> Checkpoint | None:
        if method == "submit_checkpoint":
            left.append(arguments[2])
        if begun is None or method != "register_learner":
            return None
        rank, number, num_envs = arguments
        return part_of(divided(begun, number, num_envs), rank)

    learner = DistributedLearner(assignment, process_group.rank(), process_group.size(), call)
    learner.run(lambda config, watchdog: DistributedLearnerGroup(config, watchdog, process_group))
    return left


def resumed(process_group: Any, assignment: LearnerTask, parts: list[Checkpoint]) -> Json:
    """What a learner told of the state it went on with, from its part of a checkpoint."""
    told: list[Json] = []

    def call(method: str, *arguments: Any) -> Any:
        if method == "report" and arguments[0] == "restored":
            told.append(arguments[1])
        return parts[process_group.rank()] if method == "register_learner" else None

    learner = DistributedLearner(assignment, process_group.rank(), process_group.size(), call)
    learner.run(lambda config, watchdog: DistributedLearnerGroup(config, watchdog, process_group))
    return told[0]


# --- what they are compared with ---


def built(kind: str, action: str, values: dict[str, Any], **more: Any) -> Any:
    plugin, own = KINDS[kind]
    config = plugin.Config.model_validate({"rollout_length": NUM_STEPS, "hidden_sizes": [16], **own, **values})
    return plugin.build(config, OBSERVATION, ACTIONS[action], seed=1, total_env_steps=2000, **more)


def replay_steps(
    values: dict[str, Any], ranks: list[int], share: int, peers: LearnerGroup = ALONE
) -> tuple[dict[str, float], dict[str, Any]]:
    """Three gradient steps of DQN or SAC on the batches of some learners, joined; the last step's metrics, and the
    state without the replay."""
    plugin = dqn if "double" in values else sac
    config = plugin.Config.model_validate({"num_envs": 1, "hidden_sizes": [16, 16], **values})
    action = ACTIONS["box" if plugin is sac else "discrete"]
    algorithm = plugin.build(config, OBSERVATION, action, seed=1, total_env_steps=2000, peers=peers)
    for step in range(3):
        batch = joined_batch([batch_of(action, rank, step, share) for rank in ranks])
        if isinstance(algorithm, dqn_learner.DQN):
            metrics = dict(zip(dqn_learner.STEP_METRICS, algorithm.learner.step(batch, 1e-3)[0].tolist(), strict=True))
        else:
            sums = algorithm.learner.learn(batch, 1, NoiseOf(ranks, step))
            metrics = dict(zip(sac_learner.STEP_METRICS, sums.tolist(), strict=True))
    state = {name: value for name, value in algorithm.state_dict().items() if "replay." not in name}
    return metrics, state


def batch_of(action: Any, rank: int, step: int, size: int) -> Transitions:
    """What a learner's replay gives it."""
    rng = np.random.default_rng([rank, step])
    continuous = isinstance(action, Box)
    return Transitions(
        obs=rng.normal(size=(size, 3)).astype(np.float32),
        action=rng.uniform(-1, 1, (size, 2)).astype(np.float32) if continuous else rng.integers(0, action.n, size),
        reward=rng.normal(size=size).astype(np.float32),
        next_obs=rng.normal(size=(size, 3)).astype(np.float32),
        terminated=rng.random(size) < 0.2,
        discount=np.full(size, 0.99, np.float32),
        index=np.arange(size),
        weight=rng.uniform(0.5, 1.0, size).astype(np.float32),
    )


def joined_batch(batches: list[Transitions]) -> Transitions:
    """The rows of all."""
    names = Transitions.__dataclass_fields__
    return Transitions(**{name: np.concatenate([getattr(one, name) for one in batches]) for name in names})


class NoiseOf:
    """Stands for a generator: the noise that some learners would draw for their own rows of a batch."""

    def __init__(self, ranks: list[int], step: int) -> None:
        self._rngs = [np.random.default_rng([rank, step]) for rank in ranks]

    def standard_normal(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        steps, kinds, rows, width = shape
        own = (steps, kinds, rows // len(self._rngs), width)
        return np.concatenate([rng.standard_normal(own, dtype) for rng in self._rngs], 2)


def joined_rollout(engine: str, action: str, values: dict[str, Any]) -> Trajectory:
    """Of all environments, by the policy that all learners begin with; steps that pay cost something, too."""
    found = made_up(built(engine, action, values | {"num_envs": NUM_ENVS}), 0, num_steps=NUM_STEPS)
    return replace(found, cost=found.reward.clip(0.0))


def shared(whole: Trajectory, group: DistributedLearnerGroup) -> Trajectory:
    """The columns of one learner's environments."""
    width = NUM_ENVS // group.num_learners
    own = slice(group.rank * width, (group.rank + 1) * width)
    names = ("obs", "action", "reward", "terminated", "truncated", "next_obs", "cost")
    cut = {name: np.ascontiguousarray(getattr(whole, name)[:, own]) for name in names}
    return replace(whole, **cut, extras={name: np.ascontiguousarray(one[:, own]) for name, one in whole.extras.items()})


def left_by(rank: int, step: int = 512) -> Checkpoint:
    """The part of a checkpoint that a learner might leave."""
    arrays = {
        "algorithm.policy.weight": np.full(2, 7.0),  # the same for all
        "algorithm.optimizer": np.full(2, float(rank)),
        "algorithm.reward_scaler.running": np.array([10.0 * rank, 10.0 * rank + 1]),  # of two environments
        "algorithm.recent": np.zeros(rank),
        "peers.left_out": np.full(1, float(rank)),
        "environments.envs.actions": np.full((2, rank + 1, 1), 10.0 * rank),  # of two environments, so many each
        "environments.envs.number": np.array([10 * rank, 10 * rank + 1]),
        "best.weight": np.zeros(2),
    }
    processes = [{"name": f"learner {rank}"}]
    own = {"algorithm": {"scale": rank}, "rng": np.random.default_rng(rank).bit_generator.state}
    return Checkpoint(step, arrays, {"env_steps": step, "rows": [1, 2], "segment": 3, **own, "processes": processes})


class OrderOf:
    """Stands for a generator: the orders in which one learner meets its rows, epoch by epoch."""

    def __init__(self, rank: int) -> None:
        self._rng = np.random.default_rng(rank)

    def permutation(self, size: int) -> np.ndarray:
        return self._rng.permutation(size)


class JoinedOrders:
    """The same for one process with all rows: each batch is those of all learners' together."""

    def __init__(self, num_learners: int, rows_per_step: int) -> None:
        self._learners = [OrderOf(rank) for rank in range(num_learners)]
        self._share = rows_per_step // num_learners

    def permutation(self, size: int) -> np.ndarray:
        width = NUM_ENVS // len(self._learners)
        own = size // len(self._learners)
        orders = [learner.permutation(own) for learner in self._learners]
        rows = [order // width * NUM_ENVS + rank * width + order % width for rank, order in enumerate(orders)]
        batches = [part[first : first + self._share] for first in range(0, own, self._share) for part in rows]
        return np.concatenate(batches)


def gradient_of(algorithm: Any) -> np.ndarray:
    """Of the last step."""
    if hasattr(algorithm, "_cost_flat"):
        return np.concatenate([algorithm._flat.gradient.numpy(), algorithm._cost_flat.gradient.numpy()])
    if hasattr(algorithm, "_flat"):
        return algorithm._flat.gradient.numpy().copy()
    return algorithm._networks.gradient.copy()
