"""Episodes of the gym as a language policy plays them: the whole dialogue as one sequence of tokens.

An observation of the gym holds the latest message alone, and a policy has no other memory than what it reads: here, in
one place, prompts are made of all that was said. Each turn is `begin, text, answer, end`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from loomrl.errors import EnvironmentFault
from loomrl.gym.domains import get_domain
from loomrl.gym.tasks import Task, TaskEpisode
from loomrl.language.policies.sampling import MASKED, NO_LOG_PROB
from loomrl.language.policies.tokens import Tokenizer


class PolicyMessage(NamedTuple):
    """A message that a policy wrote: its tokens, the log-probability of each, and the policy's version."""

    tokens: list[int]
    log_probs: list[float]
    version: int


Answer = Callable[[Sequence[Sequence[int]]], Sequence[PolicyMessage]]  # one message to each prompt


@dataclass(frozen=True)
class Exercise:
    """A task to attempt `num_attempts` times, with the limits of an attempt: messages of the policy, and tokens of a
    prompt."""

    task: Task
    num_attempts: int
    max_turns: int
    max_prompt_tokens: int

    def begin(self, tokenizer: Tokenizer) -> "list[TaskAttempt]":
        """`num_attempts` new attempts at the task, none of them played yet."""
        limits = self.max_turns, self.max_prompt_tokens
        return [TaskAttempt(self.task, tokenizer, *limits) for _ in range(self.num_attempts)]


class Dialogue:
    """The tokens of an episode so far, the environment's and the policy's. `masks` and `log_probs`, one for each token,
    are those of the hub's wire: of the environment's tokens MASKED and NO_LOG_PROB. `version` is that of the oldest
    policy that wrote in it; None: none has."""

    def __init__(self, tokenizer: Tokenizer, max_prompt_tokens: int) -> None:
        self._tokenizer, self._max_prompt_tokens = tokenizer, max_prompt_tokens
        self.tokens: list[int] = []
        self.masks: list[int] = []
        self.log_probs: list[float] = []
        self.version: int | None = None

    def add_environment_message(self, text: str) -> bool:
        """Append a message of the environment, as the next prompt of the policy; returns True. Where the dialogue would
        be longer than `max_prompt_tokens` nothing is appended; returns False."""
        tokens = self._tokenizer.prompt(text)
        if len(self.tokens) + len(tokens) > self._max_prompt_tokens:
            return False
        self.tokens += tokens
        self.masks += [MASKED] * len(tokens)
        self.log_probs += [NO_LOG_PROB] * len(tokens)
        return True

    def add_policy_message(self, message: PolicyMessage) -> str:
        """Append a message of the policy; returns its text."""
        self.tokens += message.tokens
        self.masks += message.tokens
        self.log_probs += message.log_probs
        self.version = message.version if self.version is None else min(self.version, message.version)
        return self._tokenizer.decode(message.tokens)


class TaskAttempt:
    """One episode of a task, with its `dialogue`. It ends with the task, after `max_turns` messages, or when the next
    prompt would be longer than `max_prompt_tokens`.

    Nothing is raised where the domain breaks, or the task alone is too long a prompt: the episode ends, and `fault`
    says why. Otherwise `fault` is None.
    """

    def __init__(self, task: Task, tokenizer: Tokenizer, max_turns: int, max_prompt_tokens: int) -> None:
        self.task, self.dialogue = task, Dialogue(tokenizer, max_prompt_tokens)
        self._turns_left = max_turns
        self._earned = dict.fromkeys(get_domain(task.domain).weights, 0.0)
        self._episode: TaskEpisode | None = None  # none once it is over
        self.fault: EnvironmentFault | None = None
        if not self.dialogue.add_environment_message(task.prompt):
            self._fail(f"is a prompt of more than {max_prompt_tokens} tokens; raise max_sequence_tokens")
            return
        try:
            self._episode = get_domain(task.domain).begin(task)
        except Exception as error:  # noqa: BLE001 - a domain may be anybody's
            self._fail(f"broke: {error!r}")

    @property
    def is_over(self) -> bool:
        """Whether the episode has ended, so that the policy writes no more messages."""
        return self._episode is None

    @property
    def score(self) -> float:
        """The total reward so far, 0 to 1."""
        return get_domain(self.task.domain).total(self.task, self._earned)

    @property
    def has_succeeded(self) -> bool:
        """Whether the task counts as solved by the rewards so far."""
        return get_domain(self.task.domain).is_solved(self._earned)

    def step(self, message: PolicyMessage) -> None:
        """Send a policy's message to the environment, and append the environment's next message. May end the episode,
        also with a `fault` where the domain breaks. Must not be called once the episode is over."""
        assert self._episode is not None, "the episode is over"
        text = self.dialogue.add_policy_message(message)
        try:
            turn = self._episode.step(text)
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(f"broke: {error!r}")
            return
        self._earned = {name: value + turn.rewards.get(name, 0.0) for name, value in self._earned.items()}
        self._turns_left -= 1
        if not math.isfinite(self.score):
            self._fail(f"was scored {self.score}")
        elif turn.finished or not self._turns_left or not self.dialogue.add_environment_message(turn.text):
            self._close()

    def _fail(self, reason: str) -> None:
        self.fault = EnvironmentFault(f"{self.task.domain}: a task of kind {self.task.kind} {reason}")
        self._close()

    def _close(self) -> None:
        episode, self._episode = self._episode, None
        try:
            if episode is not None:
                episode.close()
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(f"broke: {error!r}")


def play(attempts: Sequence[TaskAttempt], answer: Answer) -> None:
    """Play episodes to their ends, in place. `answer` gets the prompts of all attempts that wait for the policy, and
    returns one message to each; what it raises is raised."""
    while waiting := [attempt for attempt in attempts if not attempt.is_over]:
        messages = answer([attempt.dialogue.tokens for attempt in waiting])
        for attempt, message in zip(waiting, messages, strict=True):
            attempt.step(message)


def demonstration(task: Task, tokenizer: Tokenizer, max_prompt_tokens: int, max_message_tokens: int) -> Dialogue:
    """The dialogue in which a task is solved, for a policy to imitate.

    Raises:
        EnvironmentFault: where the domain breaks, or there is no room for the dialogue or one of its messages.
    """
    messages = [tokenizer.answer(text) for text in get_domain(task.domain).messages(task, task.right)]
    if (longest := max(map(len, messages))) > max_message_tokens:
        raise EnvironmentFault(
            f"{task.domain}: a task of kind {task.kind} is solved by a message of {longest} tokens, "
            f"max_message_tokens is {max_message_tokens}; raise it, or name shorter kinds"
        )
    attempt = TaskAttempt(task, tokenizer, len(messages), max_prompt_tokens)
    for tokens in messages:
        if attempt.is_over:
            break
        attempt.step(PolicyMessage(tokens, [0.0] * len(tokens), 0))
    if not attempt.has_succeeded:
        raise attempt.fault or EnvironmentFault(
            f"{task.domain}: a task of kind {task.kind} is not solved within {max_prompt_tokens} tokens; raise "
            "max_sequence_tokens, or name shorter kinds"
        )
    return attempt.dialogue
