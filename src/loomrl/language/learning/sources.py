"""Where groups come from: tasks answered in this process, or a hub's batches that environments elsewhere filled."""

import json
import logging
import time
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

import torch

from loomrl.algorithms.base import State
from loomrl.errors import ArtifactError
from loomrl.gym.domains import get_domain
from loomrl.gym.stream import TaskStream
from loomrl.gym.tasks import Task
from loomrl.language.learning.groups import TokenGroup
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.sampling import SamplingConfig, TokenCompletion
from loomrl.language.trajectory.client import HubClient, LeasedBatch

log = logging.getLogger(__name__)


class GroupSource(Protocol):
    """Supplies the groups that updates learn from, and is notified after each update. A source that has them from a
    hub or an engine raises ServiceError when that cannot be reached."""

    def collect(self, policy: LanguagePolicy, version: int) -> list[TokenGroup]:
        """Groups for the next update, waiting for them where they come from elsewhere; may be empty. `policy` is the
        learner's now, and `version` its version."""
        ...

    def acknowledge(self, version: int) -> None:
        """Confirm that the groups collected last were learnt from; `version` is the policy's after that update."""
        ...

    def state_dict(self) -> State:
        """All state that a bit-identical continuation needs: arrays, numbers and texts by name."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict()` of an equal source was taken."""
        ...


class TaskSource:
    """A `GroupSource` that draws tasks, lets the policy answer each several times in this process, and scores the
    answers.

    Args:
        tasks: where tasks are drawn; its curriculum is told whether each answer was right.
        num_prompts: tasks of one `collect`, a group each.
        num_samples: answers to each.
        sampling: how answers are drawn.
        seed: of the answers.
    """

    def __init__(
        self, tasks: TaskStream, *, num_prompts: int, num_samples: int, sampling: SamplingConfig, seed: int
    ) -> None:
        self._tasks, self._sampling = tasks, sampling
        self._num_prompts, self._num_samples = num_prompts, num_samples
        self._generator = torch.Generator().manual_seed(seed)

    def collect(self, policy: LanguagePolicy, version: int) -> list[TokenGroup]:
        """Draw `num_prompts` tasks and answer each `num_samples` times; returns a group for each, in their order.

        Raises:
            ConfigError: for a task that the tokenizer does not know, or that leaves no room for an answer.
            LoomRLError: where the policy's logits are no numbers.
        """
        drawn = self._drawn()
        answered = policy.answer([task.prompt for task in drawn], self._num_samples, self._sampling, self._generator)
        return [
            self._scored(task, policy.tokenizer.prompt(task.prompt), ones, [policy.text(one) for one in ones], version)
            for task, ones in zip(drawn, answered, strict=True)
        ]

    def acknowledge(self, version: int) -> None:
        """Do nothing: tasks are drawn in this process, and no server waits for a confirmation."""

    def state_dict(self) -> State:
        """All state that a bit-identical continuation needs: that of the tasks and of the random generator."""
        return {"tasks": json.dumps(self._tasks.state_dict()), "generator": self._generator.get_state().numpy()}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict()` of an equal source was taken."""
        self._tasks.load_state_dict(json.loads(str(state["tasks"])))
        self._generator.set_state(torch.as_tensor(state["generator"]))

    def _drawn(self) -> list[Task]:
        return [task for _, task in islice(self._tasks, self._num_prompts)]

    def _scored(
        self,
        task: Task,
        prompt: Sequence[int],
        completions: Sequence[TokenCompletion],
        texts: Sequence[str],
        version: int,
    ) -> TokenGroup:
        """Completions of a task's prompt as a group. An answer that was given several times is judged once."""
        domain = get_domain(task.domain)
        scores = {text: domain.score(task, text) for text in dict.fromkeys(texts)}
        for text in texts:
            self._tasks.curriculum.record(task.domain, scores[text].solved)
        totals = [scores[text].total for text in texts]
        return TokenGroup.of_completions(prompt, completions, totals, version, self._sampling.temperature or 1.0)


class HubSource:
    """A `GroupSource` of a hub's batches. Each is acknowledged once it was learnt from; a trainer that dies before gets
    it again. `collect` and `acknowledge` raise ServiceError when the hub is not reached for the client's patience, and
    HubRefused, a ServiceError, when it refuses.

    Groups that cannot be learnt from are left out and logged, for they would stop every trainer they are given to.
    The client's trainer is registered already.
    """

    def __init__(self, client: HubClient, poll_seconds: float = 0.2) -> None:
        self._client, self._poll_seconds = client, poll_seconds
        self._batch: LeasedBatch | None = None

    def collect(self, policy: LanguagePolicy, version: int) -> list[TokenGroup]:
        """The groups of the hub's next batch that this policy can learn from; waits, however long, until environments
        have filled one. The hub is told the version first.

        Raises:
            ServiceError: when the hub cannot be reached, or no trainer is registered.
        """
        self._client.set_policy_version(version)
        while (batch := self._client.next_batch()) is None:
            self._wait()
        self._batch = batch
        return list(self._readable(batch, policy))

    def acknowledge(self, version: int) -> None:
        """Have the hub remove the batch collected last, and tell it the policy's new version.

        Raises:
            ServiceError: when the hub cannot be reached; it may hand out the batch again.
            AssertionError: before the first `collect`.
        """
        assert self._batch is not None, "groups are collected before they are learnt from"
        self._client.acknowledge(self._batch)
        self._client.set_policy_version(version)

    def state_dict(self) -> State:
        """An empty dictionary: the hub itself keeps the batches that wait."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Do nothing: the hub itself keeps the batches that wait."""

    def _wait(self) -> None:
        time.sleep(self._poll_seconds)

    def _readable(self, batch: LeasedBatch, policy: LanguagePolicy) -> list[TokenGroup]:
        found = []
        for wire, policy_version in zip(batch.groups, batch.policy_versions, strict=True):
            try:
                group = TokenGroup.from_wire(wire, policy_version)
                group.require_readable(policy.model.config)
            except ArtifactError as error:
                log.warning("a group of environment %s is left out: %s", wire.get("env_id"), error)
            else:
                found.append(group)
        return found
