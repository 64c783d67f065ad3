"""Tool calls: tasks that need a calculator, files, a search or an HTTP interface, all of them real.

Rewards: `success`, the share of calls that succeeded; `completion`, the answer and the state asked for; `efficiency`,
no more calls than the shortest way has. Without completion the others are worth nothing. A message is a JSON object.
"""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from loomrl.gym.domains.tool_call import worlds
from loomrl.gym.domains.tool_call.tools import Toolbox, ToolError
from loomrl.gym.environment import DomainEnvironment
from loomrl.gym.tasks import Domain, Kind, Rewards, Task, TaskEpisode, Turn

MAX_CALLS = 12
_MAX_RESULT_CHARACTERS = 700


class ToolCall(Domain):
    """Tasks that are answered with the results of tool calls."""

    name = "tool_call"
    weights: ClassVar[Mapping[str, float]] = {"success": 0.2, "completion": 0.6, "efficiency": 0.2}
    kinds: ClassVar[Mapping[str, Kind]] = worlds.KINDS
    choice_bytes = 160

    def begin(self, task: Task) -> TaskEpisode:
        """An episode of the task, in a simulated world of its own."""
        return ToolEpisode(task, self.num_choices)

    def messages(self, task: Task, answer: str) -> list[str]:  # noqa: ARG002
        """The messages of a whole answer, one JSON object in each line."""
        return [line for line in answer.split("\n") if line.strip()]

    def verify(self, task: Task, answer: str) -> Rewards:
        """The rewards that the messages of a whole answer earn."""
        return self.score(task, answer).rewards


class ToolEpisode:
    """Calls and their results, up to an answer. A message that is no call counts as one that failed."""

    def __init__(self, task: Task, num_choices: int) -> None:
        self._task, self._num_choices = task, num_choices
        self._toolbox = Toolbox(task.facts["world"])
        self._calls, self._succeeded, self._planned = 0, 0, 0

    def step(self, message: str) -> Turn:
        """Call the tool that the message names, or judge its answer; returns the result or the rewards.

        A result is JSON, `{"result": ...}` or `{"error": ...}`. After `MAX_CALLS` calls the episode ends unrewarded.
        """
        plan = self._task.facts["plan"]
        self._planned += self._planned < len(plan) and message == plan[self._planned]
        content = _read(message)
        if set(content) == {"answer"}:
            return Turn("", self._rewards(content["answer"]), finished=True)
        self._calls += 1
        try:
            if set(content) != {"tool", "arguments"}:
                raise ToolError('a message is {"tool": ..., "arguments": ...} or {"answer": ...}')
            text = json.dumps({"result": self._toolbox.call(content["tool"], content["arguments"])})
            self._succeeded += 1
        except ToolError as error:
            text = json.dumps({"error": str(error)})
        return Turn(text[:_MAX_RESULT_CHARACTERS], {}, finished=self._calls >= MAX_CALLS)

    def choices(self, rng: np.random.Generator) -> list[str]:
        """Messages to choose from now, shuffled: the next one of the shortest solution, and wrong ones."""
        facts = self._task.facts
        best = facts["plan"][min(self._planned, len(facts["plan"]) - 1)]
        others = [one for one in dict.fromkeys(facts["decoys"]) if one != best]
        offered = [best, *(others[index] for index in rng.permutation(len(others))[: self._num_choices - 1])]
        return [offered[index] for index in rng.permutation(len(offered))]

    def close(self) -> None:
        """Close the task's simulated world and the tools' connections to it."""
        self._toolbox.close()

    def _rewards(self, answer: Any) -> Rewards:
        if not self._is_complete(answer):
            return {}
        shortest = len(self._task.facts["plan"]) - 1
        success = self._succeeded / self._calls if self._calls else 0.0
        efficiency = min(1.0, shortest / self._calls) if self._calls else 0.0
        return {"success": success, "completion": 1.0, "efficiency": efficiency}

    def _is_complete(self, answer: Any) -> bool:
        """The answer as text, exactly, and the world as it was asked for."""
        wanted = self._task.facts["wanted"]
        file = wanted.get("file")
        return (
            isinstance(answer, str | int)
            and str(answer).strip(" ") == self._task.facts["answer"]
            and (file is None or (self._toolbox.file(file["name"]) or "").strip() == file["text"])
            and ("orders" not in wanted or self._toolbox.shop.orders == wanted["orders"])
        )


def _read(message: str) -> dict[str, Any]:
    try:
        content = json.loads(message)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


DOMAIN = ToolCall()


class ToolCallEnvironment(DomainEnvironment):
    """The environment `loomrl/ToolCall-v0`: episodes of the tool-call domain."""

    domain = DOMAIN


Environment = ToolCallEnvironment  # as all plug-ins of this kind name it
