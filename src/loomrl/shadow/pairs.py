"""Decisions and their mirrors, read from the server's audit records."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.registry import PolicyVersion
from loomrl.serving.client import PolicyClient
from loomrl.serving.records import DECISION, SHADOW, is_own_choice
from loomrl.shadow.config import SIMULATED

_REMEMBERED = 50_000  # decisions and mirrors whose other half may still come
Record = dict[str, Any]


@dataclass(frozen=True)
class Pairs:
    """N decisions of the acting policy, each with what the challenger would have done."""

    observation: NDArray[Any]  # (N, *obs)
    acted: NDArray[Any]  # (N, *action), what the acting policy did
    mirrored: NDArray[Any]  # (N, *action), what the challenger would have done
    acted_value: NDArray[np.float64]  # (N,)
    mirrored_value: NDArray[np.float64]  # (N,)
    episode: NDArray[np.int64]  # (N,): which episode a decision belongs to
    server_seconds: NDArray[np.float64]  # (N,): the server's own time until the decision was written
    challenger_seconds: NDArray[np.float64]  # (N,)
    num_errors: int  # mirrored requests the challenger failed on

    @property
    def num_decisions(self) -> int:
        """N."""
        return len(self.acted)

    @property
    def num_episodes(self) -> int:
        """How many episodes the decisions come from."""
        return len(np.unique(self.episode))


class PairReader:
    """Follows a server's records and joins each mirror to its decision.

    Without a champion the challenger itself acts: its decisions are paired with themselves. `agent_prefix` picks the
    agents of one simulation; without it every agent counts but the simulated ones. `after` holds the sequences of the
    last decision and of the last mirror that do not count.
    """

    def __init__(
        self,
        client: PolicyClient,
        challenger: PolicyVersion,
        champion: PolicyVersion | None,
        agent_prefix: str | None = None,
        after: tuple[int, int] = (-1, -1),
    ) -> None:
        self._client, self._version = client, challenger.version
        self._acting_version = (champion or challenger).version
        self._mirrors_itself = champion is None
        self._prefix = agent_prefix
        self._after = dict(zip((DECISION, SHADOW), after, strict=True))
        self._waiting: OrderedDict[str, Record] = OrderedDict()  # by decision id; either half may be read first
        self._pairs: list[tuple[Record, Record]] = []
        self.num_errors = 0

    def __len__(self) -> int:
        return len(self._pairs)

    def read(self, on_page: Callable[[int], None] | None = None) -> int:
        """Read everything new; returns how many pairs there are now."""
        while page := self._client.shadow_records(*self._after.values()):
            for record in page:
                self._after[record["kind"]] = int(record["sequence"])
                self._take(record)
            if on_page is not None:
                on_page(len(self._pairs))
        return len(self._pairs)

    def _take(self, record: Record) -> None:
        if not self._counts(record["agent_id"]):
            return
        if record["kind"] == DECISION:
            self._take_decision(record)
        elif record["version"] == self._version and record["acting_version"] == self._acting_version:
            self._take_mirror(record)

    def _counts(self, agent_id: str) -> bool:
        return not agent_id.startswith(SIMULATED) if self._prefix is None else agent_id.startswith(self._prefix)

    def _take_decision(self, record: Record) -> None:
        if not is_own_choice(record) or record["version"] != self._acting_version:
            return
        if self._mirrors_itself:
            self._pairs.append((record, record))
            return
        mirror = self._waiting.pop(record["decision_id"], None)
        if mirror is None:
            self._wait(record)
        else:
            self._pairs.append((record, mirror))

    def _take_mirror(self, record: Record) -> None:
        if record["error"] is not None:
            self.num_errors += 1
            return
        decision = self._waiting.pop(record["decision_id"], None)
        if decision is None:
            self._wait(record)
        else:
            self._pairs.append((decision, record))

    def _wait(self, record: Record) -> None:
        self._waiting[record["decision_id"]] = record
        if len(self._waiting) > _REMEMBERED:
            self._waiting.popitem(last=False)

    def pairs(self, observation_dtype: str) -> Pairs:
        """All pairs read so far, in the order of the decisions."""
        ordered = sorted(self._pairs, key=lambda pair: int(pair[0]["sequence"]))
        decisions, mirrors = [pair[0] for pair in ordered], [pair[1] for pair in ordered]
        episodes = [entry["episode_id"] or entry["agent_id"] for entry in decisions]
        return Pairs(
            observation=np.array([entry["observation"] for entry in decisions], dtype=observation_dtype),
            acted=np.array([entry["action"] for entry in decisions]),
            mirrored=np.array([entry["action"] for entry in mirrors]),
            acted_value=_floats(decisions, "value"),
            mirrored_value=_floats(mirrors, "value"),
            episode=np.unique(episodes, return_inverse=True)[1] if episodes else np.zeros(0, dtype=np.int64),
            server_seconds=_floats(decisions, "seconds"),
            challenger_seconds=_floats(mirrors, "seconds"),
            num_errors=self.num_errors,
        )


def _floats(entries: list[Record], key: str) -> NDArray[np.float64]:
    return np.array([entry[key] for entry in entries], dtype=np.float64)
