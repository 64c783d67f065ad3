"""One Gymnasium environment over any domain: text in and text out, or a choice among messages.

Text crosses as UTF-8 in arrays of bytes with zeros after its end, because a snapshot, a recorded rollout and an
exported policy need arrays of a fixed size.
"""

from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.environment.seeds import FIRST_TRAINING_SEED
from loomrl.environment.text import TextBox, decode_text, encode_text
from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.gym.held_out import draw, part_for
from loomrl.gym.tasks import Domain, Task, TaskEpisode, level_of

Mode = Literal["text", "choice"]


class DomainEnvironment(gymnasium.Env[Any, Any]):
    """Episodes of a domain's tasks. A subclass names its `domain`, and that is all.

    In mode `text` an observation is the text to answer, a `TextBox` of `prompt_bytes`, and an action an answer, one of
    `answer_bytes`. In mode `choice` an observation is that text and the messages to choose from, float32 in [0, 1], and
    an action the number of one. Where tasks have pictures, an observation is a dict of `text` and `picture`.

    `info` holds `text`, `choices`, `domain`, `kind`, `difficulty`, and after a step `rewards`, by component,
    `answer_bytes`, how long the message was, and `letter_perfect`, 1 where it was the task's own right answer to the
    letter: what is wanted, found without the verifier that pays.

    Args:
        mode: "text" or "choice".
        difficulty: a level from 0 to 9, or its name; `reset(options={"difficulty": ...})` sets another for an episode.
        max_steps: messages after which an episode is truncated.
        kinds: draw tasks of these kinds only.
        prompt_bytes: the size of a text to answer, in place of the domain's.
        answer_bytes: that of an answer; a longer one cannot be given.
        held_out_share: the share of all tasks that is held out. After a reset with a seed below 2**30 only those are
            drawn, a quarter of them with seeds of validation alone and the others with those of evaluation, gate and
            shadow (`loomrl.environment.seeds`); after one with a seed of training's, and before any, never.

    Raises:
        ConfigError: for a mode, level, kind, size or share there is not.
    """

    metadata: dict[str, Any] = {"render_modes": []}
    domain: ClassVar[Domain]

    def __init__(
        self,
        mode: Mode = "text",
        difficulty: int | str = 0,
        max_steps: int = 50,
        kinds: Sequence[str] = (),
        prompt_bytes: int | None = None,
        answer_bytes: int | None = None,
        held_out_share: float = 0.0,
    ) -> None:
        if mode not in ("text", "choice"):
            raise ConfigError(f"mode is {mode!r}; it is 'text' or 'choice'")
        if not _are_names(kinds):
            raise ConfigError(f"kinds is {kinds!r}; it is a list of names, such as [{next(iter(self.domain.kinds))}]")
        self._mode, self._difficulty, self._kinds = mode, level_of(difficulty), tuple(kinds)
        self.domain.kinds_at(self._difficulty, self._kinds)  # a wrong kind is named at once
        self._max_steps = _whole("max_steps", max_steps)
        self._prompt_bytes = _whole("prompt_bytes", self.domain.prompt_bytes if prompt_bytes is None else prompt_bytes)
        self._answer_bytes = _whole("answer_bytes", self.domain.answer_bytes if answer_bytes is None else answer_bytes)
        if not isinstance(held_out_share, int | float) or not 0.0 <= held_out_share < 1.0:
            raise ConfigError(
                f"held_out_share is {held_out_share!r}; it is a share of all tasks, at least 0 and below 1"
            )
        self._held_out_share, self._part = held_out_share, part_for(FIRST_TRAINING_SEED)
        self._task: Task | None = None
        self._episode: TaskEpisode | None = None
        self._offered: list[str] = []
        self._text, self._steps = "", 0
        self.observation_space = self._observation_space()
        self.action_space = self._action_space()

    def _observation_space(self) -> spaces.Space[Any]:
        domain = self.domain
        size = self._prompt_bytes
        text: spaces.Space[Any] = TextBox(size)
        if self._mode == "choice":
            text = spaces.Box(0.0, 1.0, (size + domain.num_choices * domain.choice_bytes,), np.float32)
        if domain.picture_shape is None:
            return text
        return spaces.Dict(picture=spaces.Box(0, 255, domain.picture_shape, np.uint8), text=text)

    def _action_space(self) -> spaces.Space[Any]:
        if self._mode == "choice":
            return spaces.Discrete(self.domain.num_choices)
        return TextBox(self._answer_bytes)

    @property
    def task(self) -> Task:
        """The task of the last episode begun; its answer too, so it is for verifiers and not for policies.

        Raises:
            EnvironmentFault: before the first reset.
        """
        if self._task is None:
            raise EnvironmentFault(f"{self.domain.name}: no episode has begun; call reset first")
        return self._task

    @property
    def offered(self) -> list[str]:
        """The messages that can be chosen from now, by the action's number; none in mode "text" or between episodes."""
        return list(self._offered)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw a task; `options` may name another `difficulty` for this episode. Returns observation and info.

        Raises:
            ConfigError: for a level there is not, one without tasks of this seed's part, or a text that does not fit
                into `prompt_bytes`.
            EnvironmentFault: where the code that makes the task breaks.
        """
        super().reset(seed=seed)
        self.close()
        level = level_of((options or {}).get("difficulty", self._difficulty))
        if seed is not None:
            self._part = part_for(seed)
        self._task = self._draw(level)
        self._episode = self.domain.begin(self._task)
        self._text, self._steps = self._task.prompt, 0
        self._offer()
        return self._observed(), self._info()

    def _draw(self, level: int) -> Task:
        if self._held_out_share == 0.0:
            return self.domain.generate(self.np_random, level, self._kinds)
        return draw(self.domain, level, self._kinds, self.np_random, self._held_out_share, (self._part,))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Send a message: its bytes, or the number of a choice, of which one beyond `offered` sends an empty message.

        Returns and raises what `send` does.
        """
        return self.send(self._message(action))

    def send(self, message: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step with a message's text, whatever the mode: observation, reward, terminated, truncated and info.

        Raises:
            EnvironmentFault: when no episode runs.
            ConfigError: for a reply that does not fit into `prompt_bytes`.
        """
        if self._episode is None:
            raise EnvironmentFault(f"{self.domain.name}: the episode is over, or none has begun; call reset")
        turn = self._episode.step(message)
        self._steps += 1
        self._text = turn.text
        truncated = not turn.finished and self._steps >= self._max_steps
        if turn.finished or truncated:
            self.close()
        self._offer()
        rewards = self.domain.nothing() | turn.rewards  # every component, also those that this turn earned nothing of
        info = {**self._info(), "rewards": rewards, "answer_bytes": len(message.encode())}
        info["letter_perfect"] = float(message == self.task.right)
        return self._observed(), self.domain.total(self.task, rewards), turn.finished, truncated, info

    def close(self) -> None:
        """End the running episode and give back what it holds."""
        if self._episode is not None:
            self._episode.close()
            self._episode = None

    def _message(self, action: Any) -> str:
        if self._mode == "text":
            return decode_text(action)
        return self._offered[int(action)] if 0 <= int(action) < len(self._offered) else ""

    def _offer(self) -> None:
        """The messages of a choice; an action beyond them is an empty message."""
        choosing = self._mode == "choice" and self._episode is not None
        self._offered = self._episode.choices(self.np_random) if choosing and self._episode is not None else []

    def _observed(self) -> Any:
        text: NDArray[Any] = self._encoded_prompt()
        if self._mode == "choice":
            offered = [*self._offered, *[""] * (self.domain.num_choices - len(self._offered))]
            encoded = [text, *(encode_text(message, self.domain.choice_bytes) for message in offered)]
            text = np.concatenate(encoded).astype(np.float32) / np.float32(255.0)
        return text if self.domain.picture_shape is None else {"picture": self._picture(), "text": text}

    def _encoded_prompt(self) -> NDArray[np.uint8]:
        try:
            return encode_text(self._text, self._prompt_bytes)
        except EnvironmentFault as error:
            raise ConfigError(f"{self.domain.name}: {error}; raise environment.kwargs.prompt_bytes") from error

    def _picture(self) -> NDArray[np.uint8]:
        assert self.domain.picture_shape is not None
        picture = self.task.picture
        return np.zeros(self.domain.picture_shape, np.uint8) if picture is None else picture.copy()

    def _info(self) -> dict[str, Any]:
        task = self.task
        about = {"domain": task.domain, "kind": task.kind, "difficulty": task.difficulty}
        return {"text": self._text, "choices": list(self._offered), **about}


def _whole(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number, at least 1")
    return value


def _are_names(kinds: Any) -> bool:
    return isinstance(kinds, Collection) and not isinstance(kinds, str) and all(isinstance(kind, str) for kind in kinds)
