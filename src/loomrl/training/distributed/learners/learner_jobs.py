"""What one of several learners gets of a training."""

from dataclasses import replace

from loomrl.algorithms.registry import find_algorithms, get_algorithm
from loomrl.errors import ConfigError
from loomrl.system.schema import read_section
from loomrl.training.config import DistributedConfig
from loomrl.training.job import TrainingJob

_DIVIDED = ("num_envs", "batch_size")  # parameters that are of all learners together, as is `replay_capacity`


def check_shares(job: TrainingJob, rollout_length: int, config: DistributedConfig) -> None:
    """Check, before anything begins, that the job can be divided among every number of learners there may be.

    Raises:
        ConfigError: as `share_of` and `require_work` do.
    """
    for number in range(config.fewest_learners, config.num_learners + 1):
        require_work(share_of(job, rollout_length, config, number), config)


def share_of(job: TrainingJob, rollout_length: int, config: DistributedConfig, num_learners: int) -> TrainingJob:
    """The job of one of `num_learners` learners: all have equally many environments, rows of every batch and replayed
    transitions.

    Raises:
        ConfigError: where these cannot be divided and `config` fixes the number of learners, where the algorithm cannot
            be learnt by several, or keeps its replay on the disk.
    """
    _require_sharing(job)
    parameters = job.parameters
    whole = {name: getattr(parameters, name) for name in _DIVIDED if hasattr(parameters, name)}
    for name, number in whole.items():
        if number % num_learners and config.min_learners is None:
            raise ConfigError(
                f"training.parameters.{name}: {number} cannot be divided by training.distributed.num_learners "
                f"{num_learners}; set it to {-(-number // num_learners) * num_learners}"
            )
    shares = {name: -(-number // num_learners) for name, number in whole.items()}
    if hasattr(parameters, "replay_capacity"):  # as many rows as one learner would have, of fewer environments
        shares["replay_capacity"] = parameters.replay_capacity // whole["num_envs"] * shares["num_envs"]
    values = {**parameters.model_dump(), "rollout_length": rollout_length, **shares}
    place = f"training.parameters, divided by {num_learners} learners"
    return replace(job, parameters=read_section(type(parameters), values, place))


def require_work(share: TrainingJob, config: DistributedConfig) -> None:
    """Check that a learner with this share has work for its rollout workers.

    Raises:
        ConfigError: where the algorithm, or the back-end, collects itself, or there are fewer environments than
            workers.
    """
    num_workers, num_envs = config.rollout_workers_per_learner, getattr(share.parameters, "num_envs", 0)
    if num_workers == 0:
        return
    place = "training.distributed.rollout_workers_per_learner"
    algorithm, backend = share.config.algorithm, share.learning_backend
    if not get_algorithm(algorithm).ACTS_BY_POLICY or backend == "device":
        raise ConfigError(
            f"{place}: algorithm {algorithm!r} with environment.backend {backend!r} collects itself; set it to 0"
        )
    if num_workers > num_envs:
        raise ConfigError(f"{place}: {num_workers} workers for a learner's {num_envs} environments; set it to that")


def _require_sharing(job: TrainingJob) -> None:
    if not get_algorithm(job.config.algorithm).takes_peers:
        others = ", ".join(sorted(name for name, plugin in find_algorithms().items() if plugin.takes_peers))
        raise ConfigError(
            f"training.distributed: algorithm {job.config.algorithm!r} is learnt by one learner; leave the section "
            f"out, or set training.algorithm to one of {others}"
        )
    if getattr(job.parameters, "replay_storage", "memory") != "memory":
        raise ConfigError(
            "training.parameters.replay_storage: learners on other machines cannot keep what they have seen beside the "
            'checkpoints; set it to "memory"'
        )
