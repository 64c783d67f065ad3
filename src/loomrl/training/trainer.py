"""PPO in a few lines, without a config file or a project:

    trainer = PPOTrainer(PPOConfig(learning_rate=3e-4, batch_size=2048, n_epochs=10, clip_epsilon=0.2))
    result = await trainer.train(total_timesteps=100_000)
    action = trainer.policy(obs)

With `PPOConfig(distributed=True)` several learners on Ray share the work, with as much of everything in all.
The life cycle (`loomrl run`) trains with the same loop, from a snapshot and with checkpoints.
"""

import asyncio
import logging
import math
import time
from collections.abc import Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from pydantic import Field, model_validator

from loomrl.algorithms import ppo
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.construct import spaces_of
from loomrl.environment.resolve import Definition, resolve
from loomrl.environment.vector.choose import Autoreset, choose, make_vector
from loomrl.environment.vector.recipe import Recipe
from loomrl.environment.wrappers.flat import misfits
from loomrl.errors import ConfigError
from loomrl.system import events
from loomrl.system.schema import ArgumentSection
from loomrl.system.threads import one_thread
from loomrl.training.config import NO_END, ValidationConfig
from loomrl.training.loop import TrainingLoop
from loomrl.training.remarks import no_episode_ended
from loomrl.training.sections import PolicySection, Sections
from loomrl.training.seeds import Purpose, derive
from loomrl.training.validation import Validation
from loomrl.types import Json

if TYPE_CHECKING:
    from torch import Tensor

    from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy

log = logging.getLogger(__name__)

_BATCH_KEYS = ("states", "actions", "old_log_probs", "advantages", "returns")
_EVENT_SECONDS = 0.2  # at least so long between two events about updates


class PPOConfig(ArgumentSection, ppo.Config):
    """PPO's parameters and what to train on.

    Attributes:
        environment: a Gymnasium id or a name registered in LoomDB; None: a policy of given sizes, for `compute_loss`
            alone.
        total_episodes: training ends after so many, of all learners; None: only `total_timesteps` ends it.
        log_interval: updates between two log lines.
        validation: None: no greedy episodes are played, and the last policy is kept.
        distributed: several learners on Ray: on this machine, or on the cluster `ray.init` has connected to.
        num_learners: of those; `num_envs` and `batch_size` are divided by it.
        sync_frequency: gradient steps between two synchronisations of learners; 1 averages every gradient.

    Raises:
        ConfigError: naming the field, what was found and what is allowed.
    """

    environment: str | None = "CartPole-v1"
    seed: int = Field(default=0, ge=0)
    total_episodes: int | None = Field(default=None, ge=1)  # by all learners; `total_timesteps` may come first
    log_interval: int = Field(default=10, ge=1)  # updates between two log lines
    validation: ValidationConfig | None = None  # None: no greedy episodes, the last policy is kept
    distributed: bool = False  # several learners on Ray: on this machine, or the cluster `ray.init` has connected to
    num_learners: int = Field(default=2, ge=1)  # of those; num_envs and batch_size are divided by it
    sync_frequency: int = Field(default=1, ge=1)  # gradient steps between two synchronisations; 1 joins every gradient

    @model_validator(mode="after")
    def _learners_where_there_are_some(self) -> "PPOConfig":
        for name in ("num_learners", "sync_frequency"):
            if not self.distributed and name in self.model_fields_set:
                raise ValueError(f"{name} is of several learners; leave it out, or set distributed to True")
        return self

    def validation_on_ray(self, total_env_steps: int | None) -> ValidationConfig:
        """How learners on Ray validate in a training of `total_env_steps` (None: without that limit): as `validation`
        asks, else with one episode in the end, of which nothing is told."""
        return self.validation or ValidationConfig(interval_env_steps=total_env_steps or NO_END, num_episodes=1)


@dataclass(frozen=True)
class TrainingResult:
    """How a call of `train` ended. `stop_reason` is "total_env_steps", "total_episodes", "stagnation", "stop_at_return"
    or "cancelled". `metrics` are the last update's, by name. `updates` and `validations` are rows of numbers with their
    environment `step`; `validations` is empty where none were asked for."""

    total_env_steps: int
    num_episodes: int
    stop_reason: str  # total_env_steps, total_episodes, stagnation, stop_at_return or cancelled
    metrics: dict[str, float]  # of the last update
    updates: list[Json]
    validations: list[Json]


class PPOTrainer:
    """Trains one policy. `config` may be a mapping: PPOConfig's fields, and beside them the sections `policy_config`,
    `training_config` and `env_config` (`loomrl.training.sections`), whose workers' environments are all stepped here.
    With a `state_dim` and an `action_dim` and no environment the policy is one for states of so many numbers and
    actions of as many, each in [-1, 1]; it can compute losses and be served, but not train.

    Raises:
        ConfigError: naming the field, what was found and what is allowed.
    """

    def __init__(self, config: PPOConfig | Mapping[str, Any] | None = None) -> None:
        self.config, sizes = (config, PolicySection()) if isinstance(config, PPOConfig) else _read(config or {})
        self._definition: Definition | None = None
        if self.config.environment is None:
            both = _spaces(sizes)
        else:
            self._definition = resolve(EnvironmentConfig(id=self.config.environment), Path.cwd())
            both = spaces_of(self._definition)
            sizes.require_dims_of(*both)
            self._backend = choose(self._definition)
            ppo.for_backend(self.config, self._backend)  # raises where they do not fit
        self._engine = ppo.choose_engine(self.config, *both)
        with one_thread(self._engine):  # torch's orthogonal weights come from a decomposition
            self._algorithm = ppo.build(
                self.config, *both, seed=derive(self.config.seed, Purpose.WEIGHTS), total_env_steps=1
            )
        self._twin: ActorCriticPolicy | None = None
        self._calls, self._told = 0, -math.inf

    @property
    def policy(self) -> "ActorCriticPolicy":
        """The policy as it is now, in torch: the same object all along, changed by `train`."""
        from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy

        learnt = self._algorithm.policy
        if isinstance(learnt, ActorCriticPolicy):
            return learnt
        if self._twin is None:
            self._twin = ActorCriticPolicy(learnt.architecture)
            self._twin.load_arrays(learnt.arrays())
        return self._twin

    async def train(self, total_timesteps: int | None = None) -> TrainingResult:
        """Train for so many environment steps (rounded up to whole rollouts) and return how it went. None: until
        `total_episodes` ends training.

        A second call goes on with the same policy. The work runs in a thread, so the event loop stays responsive; when
        the task is cancelled, training ends after the update under way. With validation the best validated policy is
        kept. Several learners leave checkpoints, a hundredth of the steps apart (at least 20,000): what is lost, or
        cancelled, goes back to the last one.

        Raises:
            ConfigError: when there is no environment, neither `total_timesteps` nor `total_episodes` limits training,
                learners cannot share it, or there is no cluster for them.
            EnvironmentFault: when the environment breaks its API.
            ServiceError: when the head of the learners' cluster is gone.
            LoomRLError: when a metric is not finite, or learners are lost again and again.
        """
        seed = derive(self.config.seed, Purpose.CALLS, self._calls)
        loop = self._loop(total_timesteps, seed)
        self._calls += 1
        work = asyncio.ensure_future(asyncio.to_thread(self._run, loop, total_timesteps, seed))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            loop.stop("cancelled")
            await asyncio.wait([work])
            raise

    def compute_loss(self, batch: Mapping[str, Any]) -> "dict[str, Tensor]":
        """The three terms of PPO's loss on a batch of N transitions: `policy_loss`, `value_loss` and `entropy_loss`,
        scalar tensors (), weighted so that their sum is to be minimised.

        Args:
            batch: `states` (N, *obs) raw, `actions` (N, *action) as the environment takes them, continuous ones (N, A)
                before clipping, `old_log_probs`, `advantages` and `returns` (N,). With `value_clip_epsilon` also
                `values` (N,): those of the policy that acted. What is one number each may be (N, 1).

        Raises:
            ConfigError: when a key is missing, has another shape, or a number that is not finite or not in the space of
                states or actions.
        """
        from loomrl.algorithms.ppo import learner

        both = self.policy.observation_space, self.policy.action_space
        tensors = _tensors(batch, *both, values_needed=self.config.value_clip_epsilon is not None)
        features = self.policy.features(tensors["states"])
        action = self.policy.distribution.from_actions(tensors["actions"])
        old_value = tensors.get("values", tensors["returns"])  # looked at only where values are clipped
        rows = learner.PPOBatch(
            features, action, tensors["old_log_probs"], old_value, tensors["advantages"], tensors["returns"]
        )
        policy_loss, value_loss, entropy, _ = learner.losses(
            self.policy, rows, self.config.clip_epsilon, self.config.value_clip_epsilon
        )
        return {
            "policy_loss": policy_loss,
            "value_loss": value_loss * self.config.value_loss_coef,
            "entropy_loss": -entropy * self.config.entropy_coef,
        }

    def _loop(self, total_timesteps: int | None, seed: int) -> TrainingLoop:
        config = self.config
        if self._definition is None:
            raise ConfigError(
                "train() has no environment: name one in PPOConfig's `environment`, or in env_config.env_id"
            )
        if total_timesteps is None and config.total_episodes is None:
            raise ConfigError("train() has no end: pass total_timesteps, or set total_episodes in PPOConfig")
        if total_timesteps is not None and total_timesteps < 1:
            raise ConfigError(f"total_timesteps is {total_timesteps}; it must be at least 1")
        if self._twin is not None:  # whoever holds it may have changed it
            self._algorithm.policy.load_arrays(self._twin.arrays())
        self._algorithm.restart(total_timesteps)
        validation = config.validation_on_ray(total_timesteps) if config.distributed else config.validation
        return TrainingLoop(
            self._algorithm,
            self._environments,
            seed=seed,
            total_env_steps=total_timesteps,
            total_episodes=config.total_episodes,
            segment_env_steps=None,
            validation=Validation(validation, self._environments, self._definition.reward_threshold)
            if validation
            else None,
            on_update=self._report,
        )

    def _run(self, loop: TrainingLoop, total_timesteps: int | None, seed: int) -> TrainingResult:
        validation = loop.validation
        with one_thread(self._engine), closing(validation) if validation is not None else nullcontext():
            if self.config.distributed:
                from loomrl.training.distributed.session import train_together

                train_together(loop, self.config, seed, total_timesteps, self._report)
            else:
                for _ in loop.run():
                    pass
        if loop.num_episodes == 0:
            limit = self._definition.max_episode_steps if self._definition is not None else None
            log.warning(no_episode_ended(loop.env_steps, self.config.num_envs, limit))
        if self.config.validation is None:
            validation = None
        if validation is not None and validation.best:
            self._algorithm.policy.load_arrays(validation.best)
        if self._twin is not None:
            self._twin.load_arrays(self._algorithm.policy.arrays())
        metrics = {name: float(value) for name, value in loop.rows.latest.items() if name != "step"}
        validations = validation.rows if validation is not None else []
        return TrainingResult(
            loop.env_steps, loop.num_episodes, str(loop.stop_reason), metrics, loop.rows.all(), validations
        )

    def _report(self, row: Json) -> None:
        if time.monotonic() - self._told >= _EVENT_SECONDS:
            self._told = time.monotonic()
            events.emit("metrics", **row)
        update = row["step"] // self.config.rollout_size
        if update % self.config.log_interval == 0 and log.isEnabledFor(logging.INFO):
            log.info("step %d: %s", row["step"], ", ".join(f"{name} {row[name]:.4g}" for name in row if name != "step"))

    def _environments(self, num_envs: int, autoreset: Autoreset) -> VectorEnv[Any, Any, Any]:
        assert self._definition is not None
        return make_vector(Recipe(self._definition), num_envs, autoreset, self._backend)


def _read(config: Mapping[str, Any]) -> tuple[PPOConfig, PolicySection]:
    """PPOConfig's fields, translated from sections where there are any, and the sizes that were stated."""
    if not isinstance(config, Mapping):
        raise ConfigError(f"PPOTrainer takes a PPOConfig or a mapping with its fields; found {config!r}")
    named = {name: value for name, value in config.items() if name in Sections.model_fields}
    given = {name: value for name, value in config.items() if name not in named}
    if not named:
        return PPOConfig(**given), PolicySection()
    sections = Sections.read(named)
    values, num_workers = sections.parameters, sections.num_workers or 1
    if sections.env_config is not None:
        num_envs = num_workers * sections.env_config.num_envs
        values |= {"environment": sections.env_config.env_id, "num_envs": num_envs}
    elif sections.policy_config.state_dim is not None and "environment" not in {*given, *values}:
        values |= {"environment": None}
    if twice := sorted(values.keys() & given.keys()):
        raise ConfigError(f"{twice[0]} is given twice, once in a section; give it once")
    return PPOConfig(**values, **given), sections.policy_config


def _spaces(sizes: PolicySection) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
    """Of a policy without an environment."""
    if sizes.state_dim is None or sizes.action_dim is None:
        raise ConfigError(
            "PPOTrainer has no environment: name one in `environment` or env_config.env_id, or give "
            "policy_config.state_dim and action_dim"
        )
    states = spaces.Box(-np.inf, np.inf, (sizes.state_dim,), np.float32)
    return states, spaces.Box(-1.0, 1.0, (sizes.action_dim,), np.float32)


def _tensors(
    batch: Mapping[str, Any], observation: spaces.Space[Any], action: spaces.Space[Any], values_needed: bool
) -> "dict[str, Tensor]":
    """The batch's entries, those of one number each as (N,)."""
    import torch

    needed = (*_BATCH_KEYS, "values") if values_needed else _BATCH_KEYS
    if missing := [key for key in needed if key not in batch]:
        raise ConfigError(f"compute_loss: the batch lacks {', '.join(missing)}; it needs {', '.join(needed)}")
    tensors = {key: torch.as_tensor(batch[key]) for key in needed}
    num = len(tensors["states"]) if tensors["states"].ndim else 0
    wanted: dict[str, tuple[int, ...]] = dict.fromkeys(needed, (num,))
    wanted |= {"states": (num, *(observation.shape or ())), "actions": (num, *(action.shape or ()))}
    for key, shape in wanted.items():
        found = tuple(tensors[key].shape)
        if found == (*shape, 1) and len(shape) == 1:
            tensors[key] = tensors[key].squeeze(-1)
        elif found != shape or num == 0:
            raise ConfigError(f"compute_loss: {key} has the shape {found}; it must be {shape} for {num} transitions")
        _demand_values(key, tensors[key], {"states": observation, "actions": action}.get(key))
    return tensors


def _demand_values(key: str, tensor: "Tensor", space: spaces.Space[Any] | None) -> None:
    """Raise `ConfigError` for a number that no element of the space has, or, without a space, is not finite."""
    values = (tensor.double() if tensor.is_floating_point() else tensor).detach().cpu().numpy()
    wrong = ~np.isfinite(values) if space is None else misfits(space, values)
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        needed = "be finite" if space is None else f"fit {space}"
        raise ConfigError(f"compute_loss: {key} has {values[place]} in row {place[0]}; it must {needed}")
