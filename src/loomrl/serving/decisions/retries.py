"""A request that is sent again, because its answer was lost, gets the decision it had.

Who asks may name the request; asked again under the same id, also after a restart, nothing is decided a second time.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import orjson

from loomrl.serving.decisions.requests import DecisionRequests, check_kinds, flat, leading_shape
from loomrl.storage.audit.records import DECISION, DECISIONS, column, expand
from loomrl.storage.audit.sealing import is_sealed
from loomrl.system.http.problems import Problem

_REMEMBERED = 100_000
_NUMBERS = np.dtype(np.float32)
_MAX_DIMS = 16  # of an observation; numbers nested deeper are compared as text
_TOLD = (
    "decision_id", "action", "policy", "version", "value", "propensity", "role", "assignment_probability", "shield",
    "override", "limited",
)  # fmt: skip

Key = tuple[str, str]  # agent id and request id: two agents never share a decision


class _Answered(NamedTuple):
    fingerprint: bytes
    answer: bytes  # JSON


class Retries:
    """The latest answers to requests with an id.

    A record of an earlier process' log is kept as it stands, and read when one of its requests is sent again.
    """

    def __init__(self, capacity: int = _REMEMBERED) -> None:
        self._capacity = capacity
        self._answered: OrderedDict[Key, _Answered | bytes] = OrderedDict()

    def find(self, requests: DecisionRequests) -> dict[int, dict[str, Any]]:
        """Row -> its answer, for the requests that were answered before.

        Raises:
            Problem: 400 for an id that two rows share, 409 for one that named another question.
        """
        found: dict[int, dict[str, Any]] = {}
        for row, key in _named(requests):
            if (answered := self._find(key)) is None:
                continue
            if _fingerprint(requests.episode_ids[row], requests.observations[row]) != answered.fingerprint:
                raise Problem(409, f"request id {key[1]!r} of agent {key[0]!r} named another question; take a new id")
            found[row] = orjson.loads(answered.answer)
        return found

    def remember(self, requests: DecisionRequests, answers: Iterable[dict[str, Any]]) -> None:
        """Keep the answers to these requests, one for each row, as far as the rows have ids; beyond `capacity` the
        oldest go.
        """
        told = list(answers)
        for row, key in _named(requests):
            fingerprint = _fingerprint(requests.episode_ids[row], requests.observations[row])
            self._keep(key, _Answered(fingerprint, orjson.dumps(told[row])))

    def recall(self, entry: dict[str, Any]) -> None:
        """Take up what a record of the log says was answered to requests with an id; other records are passed over."""
        if not _names_requests(entry):
            return
        line = orjson.dumps(entry)
        for agent_id, request_id in _names(entry):
            if request_id is not None:
                self._keep((agent_id, request_id), line)

    def _find(self, key: Key) -> _Answered | None:
        found = self._answered.get(key)
        if isinstance(found, bytes):
            self._read(found)
            found = self._answered.get(key)
        return found if isinstance(found, _Answered) else None

    def _read(self, line: bytes) -> None:
        """Take the answers out of a record; what is sealed and cannot be opened is left out."""
        for one in expand(orjson.loads(line)):
            key = one["agent_id"], one["request_id"]
            if self._answered.get(key) is not line:
                continue
            if is_sealed(one["observation"]):
                del self._answered[key]
                continue
            fingerprint = _fingerprint(one["episode_id"], one["observation"])
            told = {name: one.get(name) for name in _TOLD} | {"exploration": one["exploration_flag"]}
            self._answered[key] = _Answered(fingerprint, orjson.dumps(told))

    def _keep(self, key: Key, answered: _Answered | bytes) -> None:
        self._answered[key] = answered
        if len(self._answered) > self._capacity:
            self._answered.popitem(last=False)


def _names_requests(entry: dict[str, Any]) -> bool:
    """Whether a record tells of requests for a decision with an id: all others need not be read closer."""
    if entry["kind"] == DECISION:
        return entry.get("request_id") is not None and entry["route"] == "decide"
    if entry["kind"] != DECISIONS:
        return False
    shared = entry["shared"]
    return ("request_id" in entry["columns"] or shared.get("request_id") is not None) and shared["route"] == "decide"


def _names(entry: dict[str, Any]) -> Iterable[tuple[str, str | None]]:
    """Agent and request id of each decision of a record."""
    if entry["kind"] == DECISION:
        return [(entry["agent_id"], entry["request_id"])]
    return zip(column(entry, "agent_id"), column(entry, "request_id"), strict=True)


def _named(requests: DecisionRequests) -> list[tuple[int, Key]]:
    """The rows that have an id."""
    ids = requests.request_ids or []
    named = [(row, (requests.agent_ids[row], name)) for row, name in enumerate(ids) if name is not None]
    if len({key for _, key in named}) < len(named):
        raise Problem(400, "two requests of one agent have the same `request_id`")
    return named


def _fingerprint(episode_id: str | None, observation: Any) -> bytes:
    """The SHA-256 digest (32 bytes) of episode and observation.

    Numbers are hashed as float32, because the log keeps no others.
    What is no number is hashed as text, so `false` differs from 0.
    """
    try:
        numbers = flat(observation, leading_shape(observation, _MAX_DIMS)[0])
        if numbers is None or list in map(type, numbers):
            raise ValueError("ragged")
        check_kinds(numbers, _NUMBERS, "observation")
        with np.errstate(over="ignore"):  # such numbers are refused when they are decided on
            observed = np.array(numbers, np.float32).tobytes()
    except (Problem, ValueError, TypeError, OverflowError):
        observed = repr(observation).encode()
    return hashlib.sha256(b"%r" % (episode_id,) + observed).digest()
