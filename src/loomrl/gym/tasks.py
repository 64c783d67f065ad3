"""What a domain of LoomRL Gym is: it makes tasks, judges answers, and says what a turn of an episode is.

A domain of single answers writes `kinds` and `verify` and is complete. One whose episodes have several turns, as games
and tools have, writes `begin` too. Everything random is drawn from the generator that is passed in, so that a seed
gives the same tasks to the byte in every process.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import ConfigError, EnvironmentFault, LoomRLError
from loomrl.system.files import canonical_json

Rewards = dict[str, float]  # component -> share of it that was earned, 0 to 1
LEVEL_NAMES = {"beginner": 0, "intermediate": 3, "advanced": 6, "expert": 9}
NUM_LEVELS = 10
MAX_ANSWER_CHARACTERS = 20_000  # a longer answer is judged unread
_WHOLE = 0.999  # the share of a component from which it counts as earned


@dataclass(frozen=True)
class Draft:
    """What a kind of task makes: a prompt, an answer that solves it, and plausible ones that score nothing."""

    prompt: str
    right: str
    wrong: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # what else verifying needs; JSON values
    picture: NDArray[np.uint8] | None = None  # (height, width, 3)


@dataclass(frozen=True, eq=False)
class Task:
    """One task: the policy sees `prompt` and `picture`, the verifier all of it."""

    domain: str
    kind: str
    difficulty: int  # a level, 0 to 9
    prompt: str
    right: str  # an answer that solves it
    wrong: tuple[str, ...]  # plausible answers that earn nothing
    facts: Mapping[str, Any]  # what else verifying needs; JSON values
    picture: NDArray[np.uint8] | None = None  # (height, width, 3)

    def to_bytes(self) -> bytes:
        """Canonical JSON; equal tasks have equal bytes."""
        picture = None if self.picture is None else self.picture.tobytes().hex()
        return canonical_json({**vars(self), "facts": dict(self.facts), "picture": picture})


class Kind(NamedTuple):
    """A kind of task: the level from which it is drawn, and what makes one for a level."""

    first_level: int
    make: Callable[[np.random.Generator, int], Draft]


class Turn(NamedTuple):
    """What follows a message: a text to answer, what was earned, and whether the task is done."""

    text: str
    rewards: Rewards
    finished: bool


class Score(NamedTuple):
    """What an answer earned in all, 0 to 1, and by component; and whether it solved the task."""

    total: float
    rewards: Rewards
    solved: bool


class TaskEpisode(Protocol):
    """A task being worked on. What its turns earn sums to at most 1 for each component."""

    def step(self, message: str) -> Turn:
        """Take the policy's message; returns the reply, the rewards it earned and whether the task is done."""
        ...

    def choices(self, rng: np.random.Generator) -> list[str]:
        """Messages to choose from now, exactly one of them best."""
        ...

    def close(self) -> None:
        """Close the episode's files, connections and processes."""
        ...


class Domain(ABC):
    """A domain of tasks with verifiable rewards.

    `weights` say what each component of the reward counts, 1 in all. `optional_components` are earned by what stands
    beside an answer, such as its working: a bare right answer solves its task and earns none of them. The sizes bound
    what an environment shows and takes: UTF-8 bytes of a prompt, an answer and a choice.
    """

    name: ClassVar[str]
    weights: ClassVar[Mapping[str, float]]
    optional_components: ClassVar[Collection[str]] = ()
    kinds: ClassVar[Mapping[str, Kind]]
    num_choices: ClassVar[int] = 4
    prompt_bytes: ClassVar[int] = 1_024
    answer_bytes: ClassVar[int] = 256
    choice_bytes: ClassVar[int] = 64
    picture_shape: ClassVar[tuple[int, int, int] | None] = None  # (height, width, 3)

    def generate(self, rng: np.random.Generator, difficulty: int, kinds: Collection[str] = ()) -> Task:
        """Draw a task of a level, of any kind the level has, or of one of `kinds`, as easy as those get.

        Raises:
            ConfigError: for a level or a kind there is not.
            EnvironmentFault: where the kind's own code breaks, with the seed that shows it.
        """
        names = self.kinds_at(difficulty, kinds)
        name = names[int(rng.integers(len(names)))]
        try:
            return self._make(name, rng, difficulty)
        except LoomRLError:
            raise  # names a fix of its own, such as a sandbox to install
        except Exception as error:  # a domain may be anybody's
            raise EnvironmentFault(
                f"{self.name}: making a task of kind {name!r}, level {difficulty}, broke: {error!r}; the generator was "
                f"seeded with {_seed_of(rng)}; mend what makes {name!r}"
            ) from error

    def _make(self, name: str, rng: np.random.Generator, difficulty: int) -> Task:
        kind = self.kinds[name]
        draft = kind.make(rng, max(difficulty, kind.first_level))
        return Task(
            self.name, name, difficulty, draft.prompt, draft.right, tuple(draft.wrong), draft.facts, draft.picture
        )

    def kinds_at(self, difficulty: int, kinds: Collection[str] = ()) -> list[str]:
        """The kinds of tasks a level has, or those of `kinds`, also where they begin at a higher level.

        Raises:
            ConfigError: for a level or a kind there is not.
        """
        if not 0 <= difficulty < NUM_LEVELS:
            raise ConfigError(f"difficulty is {difficulty}; {self.name} has the levels 0 to {NUM_LEVELS - 1}")
        if unknown := sorted(set(kinds) - self.kinds.keys()):
            raise ConfigError(f"{self.name} has no tasks of kind {unknown[0]!r}; it has: {', '.join(self.kinds)}")
        return [
            name for name, kind in self.kinds.items() if (name in kinds if kinds else kind.first_level <= difficulty)
        ]

    @abstractmethod
    def verify(self, task: Task, answer: str) -> Rewards:
        """What an answer earns by component, 0 to 1; a component left out earns 0.

        Nothing in the answer is trusted or executed outside a sandbox.
        """

    def begin(self, task: Task) -> TaskEpisode:
        """Start working on a task; here a single answer ends it."""
        return SingleAnswer(self, task)

    def messages(self, task: Task, answer: str) -> list[str]:  # noqa: ARG002
        """The messages a whole answer to a task consists of; here it is one."""
        return [answer]

    def choices(self, task: Task, rng: np.random.Generator) -> list[str]:
        """The right answer among wrong ones, in an order that is drawn."""
        wrong = [task.wrong[index] for index in rng.permutation(len(task.wrong))[: self.num_choices - 1]]
        offered = [task.right, *wrong]
        return [offered[index] for index in rng.permutation(len(offered))]

    def score(self, task: Task, answer: str) -> Score:
        """Play a whole answer, as a language policy writes it, and sum up what it earned.

        An answer of more than `MAX_ANSWER_CHARACTERS` earns nothing. What `verify` raises is passed on, such as
        ServiceError where there is no sandbox.
        """
        earned = dict.fromkeys(self.weights, 0.0)
        episode = self.begin(task)
        try:
            for message in self.messages(task, answer) if len(answer) <= MAX_ANSWER_CHARACTERS else ():
                turn = episode.step(message)
                earned = {name: value + turn.rewards.get(name, 0.0) for name, value in earned.items()}
                if turn.finished:
                    break
        finally:
            episode.close()
        return Score(self.total(task, earned), earned, self.is_solved(earned))

    def weights_of(self, task: Task) -> Mapping[str, float]:  # noqa: ARG002
        """The weight of each component a task asks for, by name; `total` divides by their sum."""
        return self.weights

    def total(self, task: Task, rewards: Rewards) -> float:
        """The weighted mean of the components a task asks for, 0 to 1."""
        weights = self.weights_of(task)
        return sum(weight * rewards.get(name, 0.0) for name, weight in weights.items()) / sum(weights.values())

    def is_solved(self, rewards: Rewards) -> bool:
        """Whether every component was earned in full, but for the optional ones."""
        return all(rewards.get(name, 0.0) >= _WHOLE for name in self.weights if name not in self.optional_components)

    def nothing(self) -> Rewards:
        """The rewards of a wrong answer: 0.0 for each component."""
        return dict.fromkeys(self.weights, 0.0)

    def everything(self) -> Rewards:
        """The rewards of a right answer: 1.0 for each component."""
        return dict.fromkeys(self.weights, 1.0)


class SingleAnswer:
    """An episode that ends with the policy's first message, its answer."""

    def __init__(self, domain: Domain, task: Task) -> None:
        self._domain, self._task = domain, task

    def step(self, message: str) -> Turn:
        """Judge the answer; returns a last turn without text, with the answer's rewards."""
        return Turn("", self._domain.verify(self._task, message), finished=True)

    def choices(self, rng: np.random.Generator) -> list[str]:
        """The answers that the domain offers for the task, exactly one of them right."""
        return self._domain.choices(self._task, rng)

    def close(self) -> None:
        """Does nothing: an episode of one answer holds no files or processes."""


def _seed_of(rng: np.random.Generator) -> object:
    """What a generator was made with; it may have drawn much since."""
    return getattr(rng.bit_generator.seed_seq, "entropy", None)


def level_of(difficulty: int | str) -> int:
    """A level from its number or its name.

    Raises:
        ConfigError: naming those there are.
    """
    if isinstance(difficulty, str) and difficulty in LEVEL_NAMES:
        return LEVEL_NAMES[difficulty]
    if isinstance(difficulty, int) and not isinstance(difficulty, bool) and 0 <= difficulty < NUM_LEVELS:
        return difficulty
    names = ", ".join(LEVEL_NAMES)
    raise ConfigError(f"difficulty is {difficulty!r}; it is one of {names}, or a level from 0 to {NUM_LEVELS - 1}")
