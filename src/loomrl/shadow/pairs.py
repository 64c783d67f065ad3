"""Decisions and their mirrors, read from the server's audit records."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import ServiceError
from loomrl.serving.client import PolicyClient
from loomrl.storage.audit.records import DECISION, SHADOW, SIMULATED, is_own_choice
from loomrl.storage.registry import PolicyVersion

_REMEMBERED = 50_000  # decisions and mirrors whose other half may still come
Record = dict[str, Any]
Heads = Mapping[int | None, tuple[int, int]]  # by worker, None for a server that has but one


@dataclass(frozen=True)
class Pairs:
    """N decisions of the acting policy, each with what the challenger would have done; all arrays have N rows.

    `acted` and `mirrored` are the actions of both, and `acted_value` and `mirrored_value` their values of the
    observation. `episode` and `agent` are numbers of the episode and the agent of each decision; `agent` is None where
    only episodes count. `server_seconds` is the server's time until a decision was written, `challenger_seconds` the
    challenger's own. `num_errors` counts mirrored requests that the challenger failed on.
    """

    observation: NDArray[Any]  # (N, *obs)
    acted: NDArray[Any]  # (N, *action), what the acting policy did
    mirrored: NDArray[Any]  # (N, *action), what the challenger would have done
    acted_value: NDArray[np.float64]  # (N,): the acting policy's value of the observation
    mirrored_value: NDArray[np.float64]  # (N,): the challenger's value of it
    episode: NDArray[np.int64]  # (N,): which episode a decision belongs to
    server_seconds: NDArray[np.float64]  # (N,): the server's own time until the decision was written
    challenger_seconds: NDArray[np.float64]  # (N,): the challenger's own time for the decision
    num_errors: int  # mirrored requests the challenger failed on
    agent: NDArray[np.int64] | None = None  # (N,): whose decision it is, where agents count and not episodes

    @property
    def unit(self) -> NDArray[np.int64]:
        """(N,): which independent unit a decision belongs to, the agent where several were watched, else the episode.

        Simulated agents count as their episodes, each of which has a seed of its own.
        """
        if self.agent is None or len(np.unique(self.agent)) < 2:
            return self.episode
        return self.agent

    @property
    def num_decisions(self) -> int:
        """How many pairs of decisions there are: N in the shapes of the arrays."""
        return len(self.acted)

    @property
    def num_episodes(self) -> int:
        """The number of different episodes that the decisions come from."""
        return len(np.unique(self.episode))


def heads(client: PolicyClient) -> Heads:
    """How far a server's chains go now, by worker: the sequence of the last record of its audit chain, and of that of
    its mirrored requests, as `/status` shows them; -1 for a chain without records.

    The only worker of a server that has but one is None.

    Raises:
        ServiceError: where the server cannot be reached or refuses, or a worker does not answer.
    """
    return {
        state.get("worker"): (int(state["audit"]["sequence"]), int(state["shadow"]["sequence"]))
        for state in states(client)
    }


def states(client: PolicyClient) -> list[Record]:
    """The `/status` of each worker of a server, or of the only one, as JSON objects.

    Raises:
        ServiceError: where the server cannot be reached or refuses, or a worker does not answer.
    """
    status = client.status()
    found: list[Record] = status.get("workers", [status])
    if silent := [state["worker"] for state in found if "error" in state]:
        raise ServiceError(f"{client.url}: worker {silent[0]} does not answer; try again when it is back")
    return found


class PairReader:
    """Follows a server's records and joins each mirror to its decision. To make one without `after`, and to read,
    raises ServiceError where the server cannot be reached or refuses.

    Without a champion the challenger itself acts: its decisions are paired with themselves. `agent_prefix` picks the
    agents of one simulation; without it every agent counts but the simulated ones. `after` holds the sequences of the
    last decision and of the last mirror that do not count, of each worker, as `heads` has them; without it everything
    counts that the server has. `num_errors` counts the mirrored requests that the challenger failed on.
    """

    def __init__(
        self,
        client: PolicyClient,
        challenger: PolicyVersion,
        champion: PolicyVersion | None,
        agent_prefix: str | None = None,
        after: Heads | None = None,
    ) -> None:
        self._client, self._version = client, challenger.version
        self._acting_version = (champion or challenger).version
        self._mirrors_itself = champion is None
        self._prefix = agent_prefix
        begun = dict.fromkeys(heads(client), (-1, -1)) if after is None else after
        self._after = {worker: dict(zip((DECISION, SHADOW), place, strict=True)) for worker, place in begun.items()}
        self._waiting: OrderedDict[str, Record] = OrderedDict()  # by decision id; either half may be read first
        self._pairs: list[tuple[Record, Record]] = []
        self.num_errors = 0

    def __len__(self) -> int:
        return len(self._pairs)

    def read(self) -> int:
        """Read everything new; returns how many pairs there are now. When it raises, what was read before stays, and
        the next call goes on from there."""
        for worker, after in self._after.items():
            while page := self._client.shadow_records(after[DECISION], after[SHADOW], worker):
                for record in page:
                    after[record["kind"]] = int(record["sequence"])
                    self._take(record)
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
        self._join(record)

    def _take_mirror(self, record: Record) -> None:
        if record["error"] is not None:
            self.num_errors += 1
            return
        self._join(record)

    def _join(self, record: Record) -> None:
        """Pair a decision or a mirror with its other half, or keep it until that comes."""
        other = self._waiting.pop(record["decision_id"], None)
        if other is not None:
            self._pairs.append((record, other) if record["kind"] == DECISION else (other, record))
            return
        self._waiting[record["decision_id"]] = record
        if len(self._waiting) > _REMEMBERED:
            self._waiting.popitem(last=False)

    def pairs(self, observation_dtype: str) -> Pairs:
        """All pairs read so far, in the order of the decisions; `observation_dtype` is the name of a NumPy type.

        Of several workers, whose decisions have no common numbers, the order is that of time. Without any pair all
        arrays have length 0.
        """
        order = "sequence" if len(self._after) == 1 else "timestamp"  # of several chains
        ordered = sorted(self._pairs, key=lambda pair: pair[0][order])
        decisions, mirrors = [pair[0] for pair in ordered], [pair[1] for pair in ordered]
        episodes = [entry["episode_id"] or entry["agent_id"] for entry in decisions]
        return Pairs(
            observation=np.array([entry["observation"] for entry in decisions], dtype=observation_dtype),
            acted=np.array([entry["action"] for entry in decisions]),
            mirrored=np.array([entry["action"] for entry in mirrors]),
            acted_value=_floats(decisions, "value"),
            mirrored_value=_floats(mirrors, "value"),
            episode=_numbered(episodes),
            server_seconds=_floats(decisions, "seconds"),
            challenger_seconds=_floats(mirrors, "seconds"),
            num_errors=self.num_errors,
            agent=_numbered([entry["agent_id"] for entry in decisions]) if self._prefix is None else None,
        )


def _numbered(names: list[str]) -> NDArray[np.int64]:
    """The same number for the same name, (N,)."""
    return np.unique(names, return_inverse=True)[1] if names else np.zeros(0, dtype=np.int64)


def _floats(entries: list[Record], key: str) -> NDArray[np.float64]:
    return np.array([entry[key] for entry in entries], dtype=np.float64)
