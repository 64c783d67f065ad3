"""What a language policy learns from: tasks of text environments, answered in groups.

A seed is a task. So all environments of a group are reset with one seed of training's own, and answers to one task are
compared; held-out tasks have other seeds and never come up (`loomrl.gym.environment`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from loomrl.environment.seeds import FIRST_TRAINING_SEED
from loomrl.environment.text import decode_text
from loomrl.environment.vector.states import State
from loomrl.errors import ConfigError
from loomrl.language.learning.examples import example
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.policies.sampling import TokenCompletion
from loomrl.language.policies.tokens import EOS, ByteTokenizer
from loomrl.types import FloatArray

if TYPE_CHECKING:
    from loomrl.language.algorithms.learning import TextLearning

_TOKENIZER = ByteTokenizer()
_FIRST_BYTE = _TOKENIZER.encode("\0")[0]  # the token of byte 0; those of the others follow
RIGHT = 0.999  # the reward from which an answer counts as right


@dataclass(frozen=True)
class AnswerRollout:
    """One answer in each of B environments, grouped by task, with its `reward` (B,); answers have no cost. `examples`
    are right answers to the same tasks, where they were requested, else none. Takes the place of a `Trajectory` in the
    training loop."""

    groups: list[TokenGroup]
    examples: list[TokenGroup]
    reward: FloatArray
    cost: None = None

    @property
    def num_transitions(self) -> int:
        """The number of answers, B: each answer is one transition of one environment."""
        return self.reward.size

    @property
    def accuracy(self) -> float:
        """The share of answers that earned the full reward, 0 to 1."""
        return float(np.mean(self.reward >= RIGHT))

    def unusable_reward(self) -> tuple[int, float] | None:
        """The first environment with a reward that float32 cannot hold, and that reward; None where there is none."""
        with np.errstate(over="ignore"):
            bad = np.flatnonzero(~np.isfinite(self.reward.astype(np.float32)))
        return (int(bad[0]), float(self.reward[bad[0]])) if len(bad) else None


class AnswerCollector:
    """Lets a policy answer in environments of text; each rollout has new tasks. `finished` holds (return, length) of
    every episode that ended since the caller last cleared it, the length always 1.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], algorithm: "TextLearning") -> None:
        self.envs, self._algorithm = envs, algorithm
        self.finished: list[tuple[float, int]] = []

    is_resumable = True

    def state_dict(self) -> State:
        """An empty dictionary: no episode continues from one `collect` to the next."""
        return {}

    def load_state_dict(self, state: State) -> int:  # noqa: ARG002
        """Do nothing, and return 0: the number of environments that could not continue an episode."""
        return 0

    def collect(self, num_steps: int, rng: np.random.Generator) -> AnswerRollout:  # noqa: ARG002
        """Draw tasks, answer each `num_samples` times, or once where examples are wanted, and take the rewards: one
        answer in each environment, whatever `num_steps` is. `rng` draws tasks and answers.

        Raises:
            ConfigError: where examples are wanted and the environments do not show their tasks, or have no room for a
                right answer; where an answer does not end an episode.
        """
        algorithm = self._algorithm
        each = 1 if algorithm.wants_examples else algorithm.num_samples
        seeds = FIRST_TRAINING_SEED + rng.integers(FIRST_TRAINING_SEED, size=self.envs.num_envs // each)
        obs, _ = self.envs.reset(seed=np.repeat(seeds, each).tolist())  # type: ignore[arg-type]  # vectors take lists
        prompts = [decode_text(row) for row in obs[::each]]
        examples = _examples(self.envs, prompts) if algorithm.wants_examples else []
        drawn = torch.Generator().manual_seed(int(rng.integers(2**63)))
        completions = algorithm.language.answer(prompts, each, algorithm.sampling(), drawn)
        reward = self._rewards([one for group in completions for one in group])
        groups = [
            TokenGroup.of_completions(
                algorithm.language.tokenizer.prompt(prompt),
                group,
                scores.tolist(),
                algorithm.version,
                algorithm.temperature,
            )
            for prompt, group, scores in zip(prompts, completions, reward.reshape(-1, each), strict=True)
        ]
        return AnswerRollout(groups, examples, reward)

    def _rewards(self, completions: Sequence[TokenCompletion]) -> FloatArray:
        (size,) = self.envs.single_action_space.shape or (0,)
        action = np.stack([answer_bytes(one.token_ids, size) for one in completions])
        _, reward, terminated, _, _ = self.envs.step(action)
        if not terminated.all():
            raise ConfigError(
                "language policies learn from single answers, and one did not end its episode; take kinds of tasks "
                "that one answer ends (environment.kwargs.kinds)"
            )
        self.finished.extend((earned, 1) for earned in reward.tolist())
        return np.asarray(reward, np.float64)


def answer_bytes(tokens: Sequence[int], size: int) -> NDArray[np.uint8]:
    """The bytes of an answer's tokens up to its end, uint8 (size,), zeros after it; begin and padding are left out. An
    answer of more than `size` bytes gives as many as it has."""
    said = tokens[: tokens.index(EOS)] if EOS in tokens else tokens
    letters = [token - _FIRST_BYTE for token in said if token >= _FIRST_BYTE]
    letters = letters[: letters.index(0)] if 0 in letters else letters
    return np.array([*letters, *[0] * (size - len(letters))], np.uint8)


def _examples(envs: VectorEnv[Any, Any, Any], prompts: Sequence[str]) -> list[TokenGroup]:
    """The right answers to the tasks that the environments have just drawn."""
    try:
        tasks = envs.get_attr("task")  # type: ignore[attr-defined]  # vectors of single environments have it
    except AttributeError as error:
        raise ConfigError(
            "a warm start needs environments that show their tasks' right answers, as LoomRL Gym's do with backend "
            "serial; set training.parameters.warm_start to null, or environment.backend to serial"
        ) from error
    (size,) = envs.single_action_space.shape or (0,)
    longest = max((task.right for task in tasks), key=lambda right: len(right.encode()))
    if len(longest.encode()) > size:
        raise ConfigError(
            f"the right answer {longest!r} has {len(longest.encode())} bytes, an answer {size}; raise "
            "environment.kwargs.answer_bytes"
        )
    return [example(_TOKENIZER, prompt, task.right) for prompt, task in zip(prompts, tasks, strict=True)]
