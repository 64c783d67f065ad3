"""The loop of the integrated system: `GymPPOIntegration`.

Environments have the inference engine attempt tasks and post the episodes to a hub; the trainer takes a batch there,
learns from it and hands the engine the next version of the policy.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from loomrl.environment.seeds import VALIDATION_SEEDS
from loomrl.errors import ConfigError
from loomrl.language.inference.builtin import BuiltinEngine
from loomrl.language.inference.engine import InferenceEngine, Sampling
from loomrl.language.learning.trainer import LanguageTrainer
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.trajectory.client import HubClient
from loomrl.system import events
from loomrl.system.threads import one_thread
from loomrl.training.checkpoints import Checkpoint
from loomrl.training.integrated.checkpoints import Checkpoints
from loomrl.training.integrated.config import GymTrainingConfig
from loomrl.training.integrated.dialogue import PolicyMessage
from loomrl.training.integrated.evaluation import held_out_tasks, success_rates
from loomrl.training.integrated.exchange import HubExchange, hub_for
from loomrl.training.integrated.learner import make_learner
from loomrl.training.integrated.pool import AttemptGroup, EnvironmentPool
from loomrl.training.integrated.results import IntegrationResults, Iteration, Rates, StopReason, means
from loomrl.training.integrated.warm_start import warm_start
from loomrl.training.seeds import Purpose, derive
from loomrl.training.trainer import PPOConfig
from loomrl.types import Json

if TYPE_CHECKING:
    from loomrl.training.integrated.players import RemotePlayers

_EVALUATION_SEED = VALIDATION_SEEDS.start  # the same tasks and draws whatever is trained

log = logging.getLogger(__name__)
T = TypeVar("T")


class GymPPOIntegration:
    """Trains one policy in all domains of a config.

    Args:
        gym_config: domains, curriculum, limits, checkpoints.
        ppo_config: how the policy learns; `batch_size` counts episodes, `total_episodes` ends training.
        policy: what to train, such as one that was loaded; by default a small one of bytes that knows nothing.
        engine: what writes the policy's messages; by default one in this process.

    Raises:
        ConfigError: for settings that do not go together.
    """

    def __init__(
        self,
        gym_config: GymTrainingConfig,
        ppo_config: PPOConfig | None = None,
        *,
        policy: LanguagePolicy | None = None,
        engine: InferenceEngine | None = None,
    ) -> None:
        self.config, self.ppo_config = gym_config, ppo_config or PPOConfig(batch_size=64)
        self._seed = self.ppo_config.seed
        policy = policy or LanguagePolicy.fresh(
            derive(self._seed, Purpose.WEIGHTS), max_tokens=gym_config.max_sequence_tokens, value_head=True
        )
        _require_room(policy, gym_config)
        self.ppo_trainer = make_learner(self.ppo_config, policy, gym_config)
        self.inference_engine = engine or BuiltinEngine()
        self.environments = EnvironmentPool(gym_config, policy.tokenizer, self._seed)
        self.players: RemotePlayers | None = None  # none: episodes are played here, by the engine
        self._checkpoints = Checkpoints(gym_config.checkpoint_folder, _trained_by(gym_config, self.ppo_config))
        self._iterations: list[Iteration] = []
        self._warm_start: Rates | None = None  # none before it was made
        self._num_calls = 0  # of the engine
        self._turn, self._stop = asyncio.Lock(), threading.Event()

    async def prepare(self) -> None:
        """Go on from the newest checkpoint, or begin with a warm start. Does nothing the second time.

        Raises:
            ConfigError: when the checkpoints are of another config, or a domain has no tasks of a level.
            ArtifactError: when the checkpoint folder cannot be written, or another process has it.
            EnvironmentFault: when a task cannot be shown within the limits on tokens.
            LoomRLError: when imitation does not reach `warm_start_accuracy`.
        """
        async with self._turn:
            if self._warm_start is None:
                await self._in_thread(self._prepare)

    async def run_training_loop(self, max_iterations: int) -> IntegrationResults:
        """Train until `max_iterations` iterations were made in all, those before a resumption included; prepares first
        where that was not done.

        When the task is cancelled, training ends after the iteration under way, and what was learnt is saved.

        Raises:
            ConfigError: for `max_iterations` below 1, and as `prepare` does.
            ArtifactError: when a checkpoint cannot be written.
            EnvironmentFault: when all environments are in quarantine.
            ServiceError: when the hub or the engine fails.
        """
        if max_iterations < 1:
            raise ConfigError(f"max_iterations is {max_iterations}; it must be at least 1")
        await self.prepare()
        async with self._turn:
            return await self._in_thread(lambda: self._run(max_iterations))

    def evaluate(self) -> Rates:
        """The share of held-out tasks of each domain, 0 to 1, that the policy solves as it is now, its messages drawn
        as in training. The tasks are the same in every call.

        Raises:
            ConfigError: where a level of a domain has no held-out tasks.
        """
        tasks = held_out_tasks(self.config, _EVALUATION_SEED)
        generator = torch.Generator().manual_seed(_EVALUATION_SEED)
        with one_thread():
            return success_rates(tasks, self.config, self.ppo_trainer.policy, generator)

    def close(self) -> None:
        """Close the inference engine; afterwards nothing can be trained."""
        self.inference_engine.close()

    # --- the loop ---

    def _prepare(self) -> None:
        checkpoint = self._checkpoints.newest()
        if checkpoint is not None:
            self._load(checkpoint)
        else:
            self._run_warm_start()
            if self._stop.is_set():
                return  # the next call goes on with it
            self._warm_start = self.evaluate()
            self._save()
        self._publish()

    def _publish(self) -> None:
        """Whoever acts does so by the newest policy."""
        for acting in (self.inference_engine, self.players):
            if acting is not None:
                acting.update(self.ppo_trainer.policy, self.ppo_trainer.version)

    def _run_warm_start(self) -> None:
        wanted = self.config.warm_start_accuracy
        with one_thread(), events.progress("warm start", round(100 * wanted)) as reporter:

            def goes_on(measured: Rates) -> bool:
                reporter.update(round(100 * min(wanted, *measured.values())), **measured)
                return not self._stop.is_set()

            policy = self.ppo_trainer.policy
            warm_start(policy, self.config, derive(self._seed, Purpose.CALLS), goes_on)
        self.ppo_trainer = make_learner(self.ppo_config, policy, self.config)  # held to what the warm start made

    def _run(self, max_iterations: int) -> IntegrationResults:
        if self.players is not None:
            self.players.update(self.ppo_trainer.policy, self.ppo_trainer.version)
        with (
            one_thread(),
            hub_for(self.config) as hub,
            HubClient(hub.url) as client,
            events.progress("gym", max_iterations) as reporter,
        ):
            exchange = HubExchange(
                client,
                self.config,
                self.environments,
                batch_size=self.ppo_config.batch_size,
                version=self.ppo_trainer.version,
                play=self._play,
                publish=self._publish,
            )
            while (reason := self._stop_reason(max_iterations)) is None:
                iteration = self._iterate(exchange)
                self._iterations.append(iteration)
                if iteration.number % self.config.checkpoint_interval == 0:
                    self._save()
                reporter.update(iteration.number, **iteration.success_rates)
                self._report(iteration)
        self._save()
        assert self._warm_start is not None
        quarantined = self.environments.quarantined
        return IntegrationResults(list(self._iterations), reason, self._warm_start, self.evaluate(), quarantined)

    def _iterate(self, exchange: HubExchange) -> Iteration:
        """One batch: environments fill it, the trainer learns from it, the engine gets the policy it made."""
        learning = next(LanguageTrainer(self.ppo_trainer, exchange).run(1))
        return self._iteration(exchange.take_played(), learning)

    def _play(self, num_groups: int) -> list[AttemptGroup]:
        if (players := self.players) is None:
            return self.environments.play(num_groups, self._answer)
        return self.environments.play_by(num_groups, lambda exercises: players.play(exercises, self._next_seed()))

    def _next_seed(self) -> int:
        self._num_calls += 1
        return derive(self._seed, Purpose.ACTIONS, self._num_calls)

    def _answer(self, prompts: Sequence[Sequence[int]]) -> list[PolicyMessage]:
        """One message to each prompt, by the engine."""
        sampling = Sampling(max_tokens=self.config.max_message_tokens, seed=self._next_seed())
        answers = self.inference_engine.complete(prompts, sampling=sampling)
        return [
            PolicyMessage(one.token_ids, one.log_probs, one.version) for answer in answers for one in answer.completions
        ]

    def _stop_reason(self, max_iterations: int) -> StopReason | None:
        if self._stop.is_set():
            return "cancelled"
        if self.ppo_config.total_episodes is not None and self._num_episodes >= self.ppo_config.total_episodes:
            return "total_episodes"
        return "max_iterations" if len(self._iterations) >= max_iterations else None

    @property
    def _num_episodes(self) -> int:
        return len(self._iterations) * self.ppo_config.batch_size

    def _iteration(self, played: list[AttemptGroup], learning: dict[str, float]) -> Iteration:
        attempts = [attempt for group in played for attempt in group.attempts]
        return Iteration(
            number=len(self._iterations) + 1,
            policy_version=self.ppo_trainer.version,
            num_episodes=self._num_episodes + self.ppo_config.batch_size,
            success_rates=means((attempt.task.domain, float(attempt.has_succeeded)) for attempt in attempts),
            mean_scores=means((attempt.task.domain, attempt.score) for attempt in attempts),
            difficulties=self.environments.difficulties,
            learning=learning,
        )

    def _report(self, iteration: Iteration) -> None:
        events.emit("metrics", step=iteration.num_episodes, **iteration.learning)
        if iteration.number % self.ppo_config.log_interval == 0:
            log.info("iteration %d: %s at %s", iteration.number, iteration.success_rates, iteration.difficulties)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Work beside the event loop; when the task is cancelled, work ends at its next good place first."""
        self._stop.clear()
        running = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self._stop.set()
            await asyncio.wait([running])
            raise

    # --- what outlives the process ---

    def _save(self) -> None:
        learnt = self.ppo_trainer.state_dict()
        values = {
            "env_steps": self._num_episodes,
            "learner": {name: value for name, value in learnt.items() if not isinstance(value, np.ndarray)},
            "environments": self.environments.state_dict(),
            "num_calls": self._num_calls,
            "warm_start": self._warm_start,
            "iterations": [iteration.to_json() for iteration in self._iterations],
        }
        arrays = {name: value for name, value in learnt.items() if isinstance(value, np.ndarray)}
        self._checkpoints.save(Checkpoint(self._num_episodes, arrays, values))

    def _load(self, checkpoint: Checkpoint) -> None:
        values = checkpoint.values
        self.ppo_trainer.load_state_dict({**checkpoint.arrays, **values["learner"]})
        self.environments.load_state_dict(values["environments"])
        self._num_calls, self._warm_start = values["num_calls"], values["warm_start"]
        self._iterations = [Iteration.model_validate(one) for one in values["iterations"]]


async def create_integrated_rl_system(
    gym_config: GymTrainingConfig,
    ppo_config: PPOConfig | None = None,
    *,
    policy: LanguagePolicy | None = None,
    engine: InferenceEngine | None = None,
) -> GymPPOIntegration:
    """A `GymPPOIntegration` that is ready to train: after its warm start, or where its newest checkpoint was. Its
    arguments and errors are those of the class, and of its `prepare`."""
    integration = GymPPOIntegration(gym_config, ppo_config, policy=policy, engine=engine)
    await integration.prepare()
    return integration


def _require_room(policy: LanguagePolicy, config: GymTrainingConfig) -> None:
    if (room := policy.model.config.max_tokens) < config.max_sequence_tokens:
        raise ConfigError(
            f"the policy reads {room} tokens, max_sequence_tokens is {config.max_sequence_tokens}; lower that"
        )


def _trained_by(gym_config: GymTrainingConfig, ppo_config: PPOConfig) -> Json:
    """What a checkpoint follows from; how long training goes on may change."""
    gym = gym_config.model_dump(mode="json", exclude={"checkpoint_folder", "checkpoint_interval"})
    return {"gym": gym, "ppo": ppo_config.model_dump(mode="json", exclude={"total_episodes", "log_interval"})}
