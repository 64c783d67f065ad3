"""What GRPO and PPO on texts share in training: a warm start by examples, then a learner of `loomrl.language`.

Reinforcement finds nothing where no answer is ever right. So right answers to training's own tasks are learnt first,
until a measured share of the policy's own greedy ones is right, on tasks it was not taught yet.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray
from pydantic import Field, model_validator

from loomrl.algorithms.base import Algorithm, State
from loomrl.errors import LoomRLError
from loomrl.language.algorithms.answering import AnswerCollector, AnswerRollout
from loomrl.language.algorithms.policy import TextPolicy
from loomrl.language.learning.examples import ExampleLearner, ExampleLearningConfig
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.learning.learner import LanguageLearner, LearnerConfig
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.sampling import SamplingConfig
from loomrl.language.policies.tokens import ByteTokenizer
from loomrl.language.policies.transformer import TransformerConfig
from loomrl.types import Act, ActFunction


class TextWarmStartConfig(ExampleLearningConfig):
    """The settings of a warm start: examples are learnt until `target_accuracy` of the policy's greedy answers are
    right. It fails after `max_examples`."""

    max_examples: int = Field(default=1_000_000, ge=1)


class TextConfig(LearnerConfig):
    """The settings of algorithms on texts: of rollouts, the warm start (None: there is none) and the transformer.

    A rollout is `num_samples` answers to each of `num_tasks` tasks; in the warm start, one to each of as many tasks.
    `width`, `num_layers` and `num_heads` are the transformer's.
    """

    num_tasks: int = Field(default=32, ge=1)
    num_samples: int = Field(default=8, ge=2)
    temperature: float = Field(default=1.0, gt=0)
    warm_start: TextWarmStartConfig | None = Field(default_factory=TextWarmStartConfig)
    width: int = Field(default=64, ge=1)
    num_layers: int = Field(default=2, ge=1)
    num_heads: int = Field(default=4, ge=1)

    @model_validator(mode="after")
    def _is_possible(self) -> "TextConfig":
        TransformerConfig(width=self.width, num_layers=self.num_layers, num_heads=self.num_heads)
        return self


class TextLearning(Algorithm):
    """An `Algorithm` for environments of text: a warm start on examples, where the config has one, then the `learner`,
    a kind of `LanguageLearner` such as GRPO. Both change `policy` in place."""

    rollout_length = 1  # an answer ends an episode

    def __init__(self, config: TextConfig, policy: TextPolicy, learner: type[LanguageLearner]) -> None:
        self.config, self._policy = config, policy
        self.num_envs, self.num_samples = config.num_tasks * config.num_samples, config.num_samples
        self.temperature = config.temperature
        self.language = LanguagePolicy(ByteTokenizer(), policy.model)
        self._create_learner = learner
        self._learner = self._new_learner(config.warm_start)

    def _new_learner(self, warm_start: TextWarmStartConfig | None) -> "LanguageLearner | _WarmStart":
        """The learner of reinforcement, or of the warm start where one is given."""
        if warm_start is None:
            return self._create_learner(self.config, self.language)
        return _WarmStart(warm_start, self.language)

    @property
    def policy(self) -> TextPolicy:
        """The policy as it is now, always the same object."""
        return self._policy

    @property
    def wants_examples(self) -> bool:
        """Whether the warm start is still under way, which needs right answers."""
        return isinstance(self._learner, _WarmStart)

    @property
    def version(self) -> int:
        """How many reinforcement updates the policy has had; 0 until the warm start has ended."""
        return 0 if isinstance(self._learner, _WarmStart) else self._learner.version

    def sampling(self) -> SamplingConfig:
        """How answers are sampled now: greedily in the warm start, where they only measure accuracy, then at
        `temperature`."""
        temperature = 0.0 if self.wants_examples else self.temperature
        return SamplingConfig(temperature=temperature, max_tokens=self.policy.answer_bytes)

    def collector(
        self,
        envs: VectorEnv[Any, Any, Any],
        seed: int,  # noqa: ARG002
        act: ActFunction | None = None,  # noqa: ARG002
    ) -> AnswerCollector:
        """A collector that draws the seeds of new tasks for each rollout in these environments; `seed` and `act` are
        not used."""
        return AnswerCollector(envs, self)

    def act(self, obs: NDArray[Any], rng: np.random.Generator) -> Act:
        """Greedy answers to observations (B, P) of bytes, as actions (B, A) of bytes; `rng` is not used. Exploring
        answers are sampled by the collector."""
        return self.policy.act(obs, rng)

    def update(  # type: ignore[override]  # what its own collector gives
        self,
        rollout: AnswerRollout,
        rng: np.random.Generator,  # noqa: ARG002
    ) -> dict[str, float]:
        """Learn from one rollout: examples until enough answers are right, then the answers themselves.

        Returns:
            `accuracy`, the share of right answers in the rollout, and `supervised_loss` in the warm start, else the
            metrics of `LanguageLearner.update`.

        Raises:
            LoomRLError: when `max_examples` do not suffice for a warm start, or a gradient is not finite.
        """
        metrics = {"accuracy": rollout.accuracy}
        if not isinstance(self._learner, _WarmStart):
            return metrics | self._learner.update(rollout.groups)
        metrics |= self._learner.learn(rollout.examples)
        if rollout.accuracy >= self._learner.config.target_accuracy:
            self._learner = self._new_learner(None)
        return metrics

    def state_dict(self) -> State:
        """All state that a bit-identical continuation needs: phase, weights, optimiser and counters."""
        return {"phase": "warm_start" if self.wants_examples else "reinforcement", **self._learner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()` of an equal algorithm, in the warm start or in reinforcement."""
        self._learner = self._new_learner(None if state["phase"] == "reinforcement" else self.config.warm_start)
        self._learner.load_state_dict(state)


class _WarmStart(ExampleLearner):
    """Lessons until enough answers are right."""

    def __init__(self, config: TextWarmStartConfig, policy: LanguagePolicy) -> None:
        super().__init__(policy, config.learning_rate, config.max_grad_norm)
        self.config, self._num_examples = config, 0

    def learn(self, examples: list[TokenGroup]) -> dict[str, float]:
        """Gradient steps on all examples, `batch_size` in each; returns the last one's loss."""
        if self._num_examples >= self.config.max_examples:
            raise LoomRLError(
                f"warm start: {self._num_examples} examples did not suffice for target_accuracy "
                f"{self.config.target_accuracy:g}; begin with easier tasks, or raise max_examples or width"
            )
        self._num_examples += len(examples)
        size = self.config.batch_size
        losses = [self.step(examples[start : start + size]) for start in range(0, len(examples), size)]
        return {"supervised_loss": losses[-1]}

    def state_dict(self) -> State:
        return {"num_examples": self._num_examples, **super().state_dict()}

    def load_state_dict(self, state: State) -> None:
        self._num_examples = int(state["num_examples"])
        super().load_state_dict(state)


def builder(algorithm: str, learner: type[LanguageLearner]) -> Callable[..., TextLearning]:
    """The plug-in function `build` of the algorithm of this name, which goes on with this kind of learner after the
    warm start. It makes a `TextLearning`, and raises ConfigError for spaces that are no texts."""

    def build(
        config: TextConfig,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        *,
        seed: int,
        total_env_steps: int,  # noqa: ARG001 - nothing here depends on how long training is
    ) -> TextLearning:
        """Make the algorithm; raises `ConfigError` for spaces that are no texts."""
        policy = TextPolicy.for_spaces(
            algorithm,
            observation_space,
            action_space,
            generator=torch.Generator().manual_seed(seed),
            width=config.width,
            num_layers=config.num_layers,
            num_heads=config.num_heads,
            value_head=learner.needs_values,
        )
        return TextLearning(config, policy, learner)

    return build
