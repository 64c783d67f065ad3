"""What stands in the audit log, and single decisions however they were written.

A request for one decision leaves a `decision` record. One for several leaves a `decisions` record for each version or
person that decided in it: what all of them share stands once, the rest column by column. Both hold `timestamp`,
`agent_id`, `action_hash`, `reward`, `q_value` and `exploration_flag`; the reward is null until feedback is joined. What
challengers would have done stands in `shadow` and `shadows` records in the same two ways. `expand` gives all alike.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.storage.audit import arrays
from loomrl.storage.audit.sealing import is_sealed, opened
from loomrl.types import Json

DECISION, DECISIONS, SHADOW, SHADOWS = "decision", "decisions", "shadow", "shadows"
SIMULATED = "shadow-"  # how the ids of agents begin whose requests the shadow stage makes
SEVERAL = {DECISION: DECISIONS, SHADOW: SHADOWS}  # the kind that holds several of a kind
CHAMPION, SPLIT = ON_TRIAL = ("champion", "split")  # roles in which a version decides for itself
FULL_BATCH = 256  # decisions made together; a record says of how many more they are, which may take longer
LINKS = ("sequence", "previous_hash", "hash")  # a record's place in its chain
# What records of decisions hold since servers had plans, shields and draws on record; older ones read like this.
_LATER = {"role": CHAMPION, "experiment": None, "shield": None, "request_id": None}
_BY_ACTION = "by_action"  # the key of a column whose values depend on the action alone
_SPANS = "spans"  # the key of a column that names decisions by their places in records
_TENS_OF_SECONDS = len("2026-01-01T00:00:0")  # of a time; chance alone has decisions take equally long once in a while
_ROWS = tuple(map(str, range(4_096)))  # texts of the numbers that are usual in ids


def record(kind: str, **fields: Any) -> dict[str, Any]:
    """A record of the log, as JSON values, with the time now; `fields` come behind, or in place of, what every record
    has.

    Its sequence and hashes are added when it is written.
    """
    return {
        "kind": kind,
        "timestamp": timestamp(),
        "agent_id": None,
        "action_hash": None,
        "reward": None,
        "q_value": None,
        "exploration_flag": False,
        **fields,
    }


def operation(policy: str, what: str, actor: str, reason: str, **fields: Any) -> dict[str, Any]:
    """A record of what an operator did now: `what`, by whom (whose token, or which user's command) and why."""
    return record("operation", policy=policy, operation=what, actor=actor, reason=reason, **fields)


def decisions(shared: dict[str, Any], columns: dict[str, Any], time: str | None = None) -> dict[str, Any]:
    """A record of several decisions, now or at this `time`: `shared` values, and `columns` of one value for each
    (arrays, or lists).

    `shared` says how many they are (`count`) and of which `dtypes`. A list of equal values is shared, too. Arrays stand
    there as `loomrl.storage.audit.arrays` writes them, those of one whole number for each as lists.
    """
    return {"kind": DECISIONS, "timestamp": time or timestamp(), "decision_id": None} | _together(shared, columns)


def shadows(shared: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    """A record of what one challenger would have done in several decisions now; `shared` and `columns` are those of
    `decisions`, whose order the columns keep."""
    return {"kind": SHADOWS, "timestamp": timestamp()} | _together(shared, columns)


def _together(shared: dict[str, Any], columns: dict[str, Any]) -> dict[str, Any]:
    constant = {name: values[0] for name, values in columns.items() if _is_constant(values)}
    varying = {
        name: arrays.to_json(values) if isinstance(values, np.ndarray) and _is_worth_it(values) else values
        for name, values in columns.items()
        if name not in constant
    }
    return {"shared": {**shared, **constant}, "columns": varying}


def _is_worth_it(values: NDArray[Any]) -> bool:
    return values.ndim > 1 or values.dtype.kind == "f"


def _is_constant(values: Any) -> bool:
    return isinstance(values, list) and values.count(values[0]) == len(values)


def expand(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A record as it is, or for one of several decisions, or shadows, a record for each, in order, with its `row`.

    What is sealed in it is opened where its key is here; where not, `observation` stays sealed, without a digest.

    Raises:
        ArtifactError: when what is sealed was changed, or sealed for another place.
    """
    entry = opened(entry)
    if entry["kind"] not in SEVERAL.values():
        later = {name: value for name, value in _LATER.items() if entry["kind"] == DECISION and name not in entry}
        yield entry | later
        return
    links, dtypes = {name: entry[name] for name in LINKS if name in entry}, entry["shared"]["dtypes"]
    for row, fields in enumerate(rows(entry)):
        action = np.asarray(fields["action"], dtypes["action"])
        single = record(**fields, **links)
        hashed = fields.get("action_hash") or digest(action)  # logs from before 2026 hold none in records of several
        single |= {"action": action.tolist(), "action_hash": hashed, "q_value": fields["value"], "row": row}
        if entry["kind"] == DECISIONS:
            single |= {"limited": False, "observation_digest": _observed(fields["observation"], dtypes["observation"])}
        yield single | {"timestamp": entry["timestamp"]}


def _observed(observation: Any, dtype: str) -> str | None:
    """The digest of an observation; None where it is sealed."""
    return None if is_sealed(observation) else digest(np.asarray(observation, dtype))


class RequestTimes:
    """When the decisions of one chain were asked for, record by record in its order.

    Those of one request have one time. Earlier versions wrote a record of each version that decided in it with a time
    of its own, in an order that depends on what agents were dealt; they have the same `seconds`, and follow each other.
    """

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._time = ""

    def of(self, entry: Json) -> str:
        """The time of a record, of one decision or several."""
        seconds, time = entry.get("shared", entry).get("seconds"), str(entry["timestamp"])
        if seconds is None or seconds != self._seconds or time[:_TENS_OF_SECONDS] != self._time[:_TENS_OF_SECONDS]:
            self._seconds, self._time = seconds, time
        return self._time


def is_taken_over(decision: dict[str, Any]) -> bool:
    """Whether a person or a fallback decided in place of the versions on trial."""
    named = decision.get("role", CHAMPION)  # logs from before there was a plan name none
    return decision["override"] is not None or named not in ON_TRIAL


def asked_to_explore(decision: dict[str, Any]) -> bool:
    """Whether the agent asked that this decision explores. Older records do not say so: there, whether it explored."""
    return bool(decision.get("asked_to_explore", decision["exploration_flag"]))


def is_own_choice(decision: dict[str, Any]) -> bool:
    """Whether the version that a decision's record names chose it: not a person, not a fallback, not chance."""
    return not is_taken_over(decision) and not decision["exploration_flag"]


def rows(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """For each decision, or shadow, of a record of several, in order, a record of what is written of it.

    Those of `expand` have what follows from that, too: digests, `q_value`, `row`, and the place in the chain.
    """
    shared, columns = entry["shared"], entry["columns"]
    rest = {name: value for name, value in shared.items() if name not in ("count", "dtypes")}
    lists = {name: column(entry, name) for name in columns}
    if entry["kind"] == DECISIONS and "value" not in rest:
        lists["value"] = column(entry, "value")
    for row in range(shared["count"]):
        found = rest | {name: values[row] for name, values in lists.items()}
        if entry["kind"] == DECISIONS:
            yield {"kind": DECISION, "decision_id": f"{entry['decision_id']}.{row}"} | found
        else:
            yield {"kind": SHADOW} | found


def column(entry: dict[str, Any], name: str) -> list[Any]:
    """The values of a name, one for each decision of a record, whether that is of one or of several.

    Raises:
        KeyError: when the record holds nothing of this name, see `holds`.
    """
    if "columns" not in entry:
        return [entry[name] if name in entry else _LATER[name]]
    shared, name = entry["shared"], _stored(entry, name)
    if name in shared:
        return [shared[name]] * shared["count"]
    values = entry["columns"][name]
    if not isinstance(values, dict):
        return list(values)
    if arrays.is_array(values):
        return list(arrays.numbers(arrays.from_json(values)))
    if _BY_ACTION in values:
        return [values[_BY_ACTION][str(action)] for action in column(entry, "action")]
    return _ids(values[_SPANS])


def holds(entry: dict[str, Any], name: str) -> bool:
    """Whether a record says something of this name, for all of its decisions or for each."""
    return name in entry or name in entry.get("shared", ()) or name in entry.get("columns", ())


def _stored(entry: dict[str, Any], name: str) -> str:
    """The key under which a record of several decisions holds a column: what the policy expected is its `q_value`."""
    return "q_value" if name == "value" and not holds(entry, name) else name


def action_hashes(action: NDArray[Any]) -> Json | list[str]:
    """The SHA-256 digests of actions (B, *action) as a column of a record: a list of B, in hex; for whole numbers (B,)
    a table that holds each different one once."""
    if action.ndim == 1 and action.dtype.kind in "iu":
        return {_BY_ACTION: {str(choice): _hash_of_choice(choice, action.dtype.str) for choice in set(action.tolist())}}
    data, size = action.tobytes(), action.nbytes // len(action)
    return [hashlib.sha256(data[start : start + size]).hexdigest() for start in range(0, len(data), size)]


@lru_cache(maxsize=4_096)
def _hash_of_choice(choice: int, dtype: str) -> str:
    return digest(np.asarray(choice, dtype))


def spans(found: Sequence[tuple[str, int, int]]) -> dict[str, Any]:
    """The ids of decisions as a column of a record, each given as (id of its record, first row, row behind the last).

    The rows of a record of one decision are -1 and 0. `column` makes the ids of it again.
    """
    return {_SPANS: found}


def _ids(found: Sequence[tuple[str, int, int]]) -> list[str]:
    return [name for whole, start, stop in found for name in (row_ids(whole, start, stop) if start >= 0 else (whole,))]


def array(entry: dict[str, Any], name: str) -> NDArray[Any]:
    """The values of a name as an array (count, ...), one row for each decision of a record; (1, ...) for a record of
    one.

    Raises:
        KeyError: when the record holds nothing of this name.
    """
    values: Any = entry["columns"].get(_stored(entry, name)) if "columns" in entry else None
    return arrays.from_json(values) if arrays.is_array(values) else np.array(column(entry, name))


def record_of(decision_id: str) -> str:
    """The id of the record a decision stands in: its own, or that of the record of several."""
    return decision_id.partition(".")[0]


def row_ids(record_id: str, start: int, stop: int) -> list[str]:
    """The ids of the decisions in the rows `start` to `stop`, `stop` not included, of a record of several."""
    return joined_row_ids(record_id, start, stop).split(",")


def joined_row_ids(record_id: str, start: int, stop: int) -> str:
    """The ids of `row_ids` in one text, with commas between them; faster to make, as every request of several needs."""
    numbered = _ROWS[start:stop] if stop <= len(_ROWS) else map(str, range(start, stop))
    return f"{record_id}." + f",{record_id}.".join(numbered)


def row_of(decision_id: str, count: int) -> int | None:
    """The row of a decision in a record of `count`, 0 in a record of one; None where that has no such decision."""
    _, dot, row = decision_id.partition(".")
    if count == 1:
        return None if dot else 0
    is_row = row.isascii() and row.isdecimal() and str(int(row)) == row and int(row) < count
    return int(row) if is_row else None


def digest(values: NDArray[Any] | np.generic) -> str:
    """SHA-256 of an action's or observation's bytes, as its dtype has them: 64 hex digits."""
    return hashlib.sha256(values.tobytes()).hexdigest()


_second: tuple[int, str] = (0, "")


def timestamp() -> str:
    """Now, ISO 8601 in UTC, microseconds. The part down to seconds is formatted once a second."""
    global _second  # noqa: PLW0603 - a cache of one immutable pair; a race recomputes it
    second, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    cached = _second
    if cached[0] != second:
        cached = _second = (second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)))
    return f"{cached[1]}.{nanoseconds // 1000:06d}Z"
