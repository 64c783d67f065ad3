"""What recurrent policies remember between the decisions of an episode.

An episode is an agent's id and the id it gives the episode. It begins with zeros and ends with feedback that says
`terminated` or `truncated`. The version that began it goes on deciding in it, also where another one takes its role
meanwhile: what one version remembers means nothing to another. Where the version must change, the episode begins anew,
and the record says what it had until then.

Memories are not on disk. The log holds what was observed, and a digest of each memory that went into a decision: after
a restart an episode is played again from there, on its first use, and every digest must be met.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from loomrl.serving.policy.model import STATE_OUT, ServedPolicy
from loomrl.storage.audit.records import digest, expand, is_taken_over
from loomrl.storage.audit.segments import complete_lines, segments
from loomrl.system.http.problems import Problem
from loomrl.types import Json

CAPACITY = 65_536
_IDLE_SECONDS = 3_600.0  # an episode nobody asked about for so long is forgotten
_LOOK_BACK_BYTES = 256 * 2**20  # of the log, for episodes that a restart cut into
_MOST_FORGOTTEN = 16  # times the capacity

Key = tuple[str, str]  # agent and episode
State = NDArray[np.float32]


@dataclass(slots=True)
class EpisodeMemory:
    """The state that one recurrent version keeps of one episode: `state` (M,) goes into its next decision, after `step`
    of them.
    """

    version: str
    state: State  # (M,), that goes into the next decision
    step: int  # decisions behind it
    is_kept: bool  # whether the episode stays with this version; not where a person chose it
    used: float  # time.monotonic() seconds


@dataclass(frozen=True, slots=True)
class LoggedStep:
    """One decision of an episode, as it stands in the log.

    Attributes:
        step: how many decisions of the episode came before it.
        digest: of the memory that went into it.
        is_kept: whether the episode stays with the version; not where a person chose it.
    """

    version: str
    step: int
    digest: str
    observation: Any  # a mapping where it is sealed
    is_kept: bool


@dataclass(frozen=True, slots=True)
class Recalled:
    """What goes into B decisions of one version: the agent and episode of each, the states (B, M), and what records say
    of them.
    """

    keys: list[Key]
    states: State  # (B, M)
    marks: list[Json]  # what records say of it: `step`, `digest`, and `restarted_from` a version


class Memories:
    """The memories of a server's episodes. One thread decides; `versions` may be asked by any."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._awake: OrderedDict[Key, EpisodeMemory] = OrderedDict()  # the one used last comes last
        self._asleep: OrderedDict[Key, list[LoggedStep]] = OrderedDict()  # of the log; empty for what was forgotten
        self._num_awake: Counter[str] = Counter()  # by version

    def __len__(self) -> int:
        return len(self._awake) + len(self._asleep)

    def versions(self) -> set[str]:
        """The versions that keep the state of an episode under way."""
        return {version for version, count in list(self._num_awake.items()) if count > 0}

    def version_of(self, agent_id: str, episode_id: str | None) -> str | None:
        """The version an episode stays with; None where there is none."""
        if episode_id is None:
            return None
        key = (agent_id, episode_id)
        memory = self._awake.get(key)
        if memory is not None:
            return memory.version if memory.is_kept else None
        logged = self._asleep.get(key)
        return logged[-1].version if logged and logged[-1].is_kept else None

    def recall(self, policy: ServedPolicy, agent_ids: Sequence[str], episode_ids: Sequence[str | None]) -> Recalled:
        """What a recurrent policy remembers of B episodes; zeros of one that begins, or that another version began.

        Raises:
            Problem: 400 without an episode, or for two decisions of one; 409 for an episode whose memory is lost.
        """
        keys = [_key(policy, *ids) for ids in zip(agent_ids, episode_ids, strict=True)]
        if len(set(keys)) < len(keys):
            twice = next(key for key, count in Counter(keys).items() if count > 1)
            raise Problem(
                400,
                f"two decisions of agent {twice[0]!r} in episode {twice[1]!r}: {policy.manifest.name} is recurrent, "
                "and decides the steps of an episode one after the other",
            )
        states = np.zeros((len(keys), policy.memory_size), np.float32)
        marks = [self._recall(policy, key, states[row]) for row, key in enumerate(keys)]
        return Recalled(keys, states, marks)

    def keep(self, policy: ServedPolicy, recalled: Recalled, after: State, is_kept: bool) -> None:
        """Remember the states (B, M) that came `after` decisions which are on record. `is_kept`: whether their episodes
        stay with this version.
        """
        now = time.monotonic()
        for key, state, mark in zip(recalled.keys, after, recalled.marks, strict=True):
            self._let_go(key)
            self._awake[key] = EpisodeMemory(policy.version, state.copy(), mark["step"] + 1, is_kept, now)
            self._num_awake[policy.version] += 1
        while len(self._awake) > self._capacity or self._oldest().used < now - _IDLE_SECONDS:
            self._forget()

    def end(self, ended: Iterable[tuple[str, str | None]]) -> None:
        """Drop the states of these episodes (agent, episode id), which have ended."""
        for agent_id, episode_id in ended:
            if episode_id is not None:
                self._let_go((agent_id, episode_id))

    def restore(self, folder: Path) -> None:
        """Learn from a chain which episodes a restart cut into, in place of those that were known.

        Raises:
            ArtifactError: when a compacted segment cannot be read.
        """
        self._asleep = OrderedDict(unfinished(folder))

    def _recall(self, policy: ServedPolicy, key: Key, state: State) -> Json:
        """Write the memory into a row of zeros, and say what went in."""
        step, former = 0, None
        memory, logged = self._awake.get(key), self._asleep.get(key)
        if memory is None and logged is not None:
            if not logged:
                raise _lost(key, "more episodes were under way than this server remembers, or it idled for an hour")
            if logged[-1].version == policy.version:
                memory = _played_again(key, logged, policy)
            else:
                former = logged[-1].version
        if memory is not None and memory.version == policy.version:
            state[:], step = memory.state, memory.step
        elif memory is not None:
            former = memory.version
        mark: Json = {"step": step, "digest": digest(state)}
        return mark if former is None else mark | {"restarted_from": former}

    def _oldest(self) -> EpisodeMemory:
        return next(iter(self._awake.values()))

    def _forget(self) -> None:
        key = next(iter(self._awake))
        self._let_go(key)
        self._asleep[key] = []
        if len(self._asleep) > _MOST_FORGOTTEN * self._capacity:
            self._asleep.popitem(last=False)

    def _let_go(self, key: Key) -> None:
        self._asleep.pop(key, None)
        if (memory := self._awake.pop(key, None)) is not None:
            self._num_awake[memory.version] -= 1


def unfinished(folder: Path) -> dict[Key, list[LoggedStep]]:
    """The decisions of all episodes of recurrent policies that have not ended in a chain, by agent and episode, in
    order.

    Only the newest 256 MiB of the chain are read, in whole segments.

    Raises:
        ArtifactError: when a compacted segment cannot be read.
    """
    found: dict[Key, list[LoggedStep]] = {}
    for path in _newest(folder):
        for line in complete_lines(path):
            if b'"memory":' in line:
                for entry in expand(orjson.loads(line)):
                    _add(found, entry)
            elif b'"kind":"feedback"' in line and (b'"terminated":true' in line or b'"truncated":true' in line):
                ended = orjson.loads(line)
                found.pop((ended["agent_id"], ended["episode_id"]), None)
    return found


def _newest(folder: Path) -> list[Path]:
    paths = segments(folder)
    size = 0
    for index in reversed(range(len(paths))):
        size += paths[index].stat().st_size
        if size > _LOOK_BACK_BYTES:
            return paths[index:]
    return paths


def _add(found: dict[Key, list[LoggedStep]], entry: Json) -> None:
    mark, key = entry["memory"], (entry["agent_id"], entry["episode_id"])
    logged = LoggedStep(entry["version"], mark["step"], mark["digest"], entry["observation"], not is_taken_over(entry))
    if logged.step == 0:
        found[key] = []
    found.setdefault(key, []).append(logged)


def _played_again(key: Key, logged: list[LoggedStep], policy: ServedPolicy) -> EpisodeMemory:
    """The memory after the decisions of the log."""
    state = np.zeros((1, policy.memory_size), np.float32)
    for step, one in enumerate(logged):
        if isinstance(one.observation, dict):
            raise _lost(
                key, "the server was started again, and what was observed is sealed with a key it does not have"
            )
        if one.step != step or one.digest != digest(state[0]):
            raise _lost(key, "the server was started again, and its log does not lead to what was remembered")
        state = policy.outputs(np.asarray([one.observation], policy.dtype), state)[STATE_OUT]
    return EpisodeMemory(policy.version, state[0], len(logged), logged[-1].is_kept, time.monotonic())


def _lost(key: Key, why: str) -> Problem:
    return Problem(409, f"the memory of agent {key[0]!r} in episode {key[1]!r} is lost: {why}; begin a new episode")


def _key(policy: ServedPolicy, agent_id: str, episode_id: str | None) -> Key:
    if episode_id is None:
        raise Problem(
            400,
            f"{policy.manifest.name} is recurrent: send `episode_id` (in V2 `parameters.episode_id`), the same for all "
            "steps of an episode and another one for each episode",
        )
    return agent_id, episode_id
