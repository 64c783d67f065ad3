"""Reading what agents send: strict, by hand, because it runs for every decision.

Lists have the lengths that are expected before they are taken apart, and answers repeat little of what was sent: who
sends what is malformed takes no more of the server's time than parsing it does.
"""

import gc
import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from loomrl.serving.policy.model import SMALL, ServedPolicy
from loomrl.serving.settings import MAX_ROWS
from loomrl.system.http.large_bodies import LARGE
from loomrl.system.http.problems import Problem

MAX_ID = 128
_REQUEST_KEYS = frozenset(("agent_id", "episode_id", "observation", "explore", "request_id"))
_FEEDBACK_KEYS = frozenset(("decision_id", "reward", "terminated", "truncated", "cost"))
_FLOAT_MAX = {np.dtype(kind).itemsize: float(np.finfo(kind).max) for kind in (np.float16, np.float32, np.float64)}
_NUMBERS = {int, float}
_LARGEST = 1e100  # of a reward or cost
_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "fiu"}  # numpy's kinds of numbers that each kind of input takes
ByToken = str | Sequence[str | None] | None  # of all, or of each: the token, where that may speak for any agent


@dataclass(slots=True)
class DecisionRequests:
    """What B agents ask in one request, column by column.

    `by_token` names the tokens that may speak for any agent: one for all, one for each (None: no such token), or None.
    """

    agent_ids: list[str]
    episode_ids: list[str | None]
    explore: list[bool]
    observations: Any  # B of them, as parsed from JSON, or an array (B, *obs)
    request_ids: Sequence[str | None] | None = None  # None where none has one
    holder: str = ""  # whose token was shown; empty where none was needed
    by_token: ByToken = None

    @classmethod
    def joined(cls, all_requests: Sequence["DecisionRequests"]) -> "DecisionRequests":
        """What several requests ask as one, in their order; their observations are all JSON or all arrays.

        Of several, `holder` is left empty: the rate limit was asked before.
        """
        if len(all_requests) == 1:
            return all_requests[0]
        observations = [one.observations for one in all_requests]
        is_array = isinstance(observations[0], np.ndarray)
        return cls(
            list(chain.from_iterable(one.agent_ids for one in all_requests)),
            list(chain.from_iterable(one.episode_ids for one in all_requests)),
            list(chain.from_iterable(one.explore for one in all_requests)),
            np.concatenate(observations) if is_array else list(chain.from_iterable(observations)),
            _joined_names([one.request_ids for one in all_requests], all_requests),
            by_token=_joined_tokens(all_requests),
        )

    def __len__(self) -> int:
        return len(self.agent_ids)

    @property
    def has_one_token(self) -> bool:
        """Whether what `by_token` says holds for all of them."""
        return self.by_token is None or isinstance(self.by_token, str)

    def only(self, rows: list[int]) -> "DecisionRequests":
        """What these rows ask, in this order; an array of observations stays an array."""
        is_array = isinstance(self.observations, np.ndarray)
        return DecisionRequests(
            [self.agent_ids[row] for row in rows],
            [self.episode_ids[row] for row in rows],
            [self.explore[row] for row in rows],
            self.observations[rows] if is_array else [self.observations[row] for row in rows],
            None if self.request_ids is None else [self.request_ids[row] for row in rows],
            self.holder,
            self.by_token if self.has_one_token else [token_at(self.by_token, row) for row in rows],
        )


@dataclass(frozen=True, slots=True)
class Feedback:
    """What followed one decision: its reward, an optional cost, and whether the episode ended."""

    decision_id: str
    reward: float
    terminated: bool
    truncated: bool
    cost: float | None = None


def _joined_names(
    given: list[Sequence[str | None] | None], all_requests: Sequence[DecisionRequests]
) -> list[str | None] | None:
    """Names that several requests gave their rows; None where none has any."""
    if given.count(None) == len(given):
        return None
    return [name for names, one in zip(given, all_requests, strict=True) for name in names or [None] * len(one)]


def _joined_tokens(all_requests: Sequence[DecisionRequests]) -> ByToken:
    first = all_requests[0]
    if first.has_one_token and all(one.by_token == first.by_token for one in all_requests):
        return first.by_token
    return [token_at(one.by_token, row) for one in all_requests for row in range(len(one))]


def token_at(tokens: ByToken, row: int) -> str | None:
    """The token of one row: `tokens` itself where one holds for all rows, else that of the row."""
    return tokens if tokens is None or isinstance(tokens, str) else tokens[row]


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = MAX_ID

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:  # noqa: ARG002 - reprlib's signature
        """Without its keys: `Repr` sorts them, however many there are."""
        return f"an object of {len(x)} keys" if x else "{}"


_SHORT = _Short()


def shown(value: Any) -> str:
    """What was sent, as a refusal repeats it: in a few words, however large it is."""
    return _SHORT.repr(value)


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object in a request's body.

    Raises:
        Problem: 400 where the body is not JSON, or is JSON but no object.
    """
    try:
        document = orjson.loads(body) if len(body) < LARGE else _parse_large(body)
    except orjson.JSONDecodeError as error:
        raise Problem(400, f"the body is not JSON: {error}; note that JSON has neither NaN nor infinity") from error
    if not isinstance(document, dict):
        raise Problem(400, f"the body must be a JSON object, found {type(document).__name__}")
    return document


def _parse_large(body: bytes) -> Any:
    """Without collections of garbage meanwhile: a million lists start hundreds, each through all that there is."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return orjson.loads(body)
    finally:
        if was_enabled:
            gc.enable()


def parse_requests(
    document: dict[str, Any], request_id: str = "", max_rows: int = MAX_ROWS
) -> tuple[DecisionRequests, bool]:
    """The requests in a `/decide` body, and whether they came as a batch `{"requests": [...]}`.

    `request_id` is the whole request's: of a batch, each row's is `REQUEST.ROW`, unless it names its own. Observations
    stay as they were sent; they are checked against a policy later.

    Raises:
        Problem: 400, naming the key and what is wrong with it; 413 for more than `max_rows`.
    """
    if "requests" not in document:
        agent_id, episode_id, explore, observation, named_id = _parse_request(document)
        if request_id:
            named_id = _request_id(named_id, request_id, None)
        ids = None if named_id is None else [named_id]
        return DecisionRequests([agent_id], [episode_id], [explore], [observation], ids), False
    rows = [_parse_request(entry) for entry in _entries(document, "requests", max_rows)]
    agent_ids, episode_ids, explores, observations, all_ids = map(list, zip(*rows, strict=True))
    if request_id:
        all_ids = [_request_id(own, request_id, row) for row, own in enumerate(all_ids)]
    named = None if all_ids.count(None) == len(all_ids) else all_ids
    return DecisionRequests(agent_ids, episode_ids, explores, observations, named), True


def _request_id(own: str | None, of_all: str, row: int | None) -> str:
    if own is not None:
        return own
    return check_id(of_all if row is None else f"{of_all}.{row}", "X-Request-Id")


def parse_feedback(document: dict[str, Any], max_rows: int = MAX_ROWS) -> tuple[list[Feedback], bool]:
    """The entries of a `/feedback` body, and whether they came as a batch `{"feedback": [...]}`.

    Raises:
        Problem: 400, naming the key and what is wrong with it; 413 for more than `max_rows`.
    """
    if "feedback" not in document:
        return [_parse_feedback(document)], False
    return [_parse_feedback(entry) for entry in _entries(document, "feedback", max_rows)], True


def _entries(document: dict[str, Any], key: str, max_rows: int) -> list[Any]:
    entries = document[key]
    if len(document) > 1 or not isinstance(entries, list) or not entries:
        raise Problem(400, f"`{key}` must be a list that is not empty, and the only key")
    check_rows(len(entries), f"`{key}`", max_rows)
    return entries


def check_rows(count: int, name: str, max_rows: int) -> None:
    """Refuse more in one request than the server decides without a pause.

    Raises:
        Problem: 413 for more than `max_rows`; `name` is what it calls them.
    """
    if count > max_rows:
        raise Problem(413, f"{name} has {count} entries; send at most {max_rows} in one request")


def _parse_request(entry: Any) -> tuple[str, str | None, bool, Any, str | None]:
    """Agent, episode, whether to explore, the observation, and the request's id."""
    if not isinstance(entry, dict):
        raise Problem(400, f"a request must be an object, found {type(entry).__name__}")
    if not entry.keys() <= _REQUEST_KEYS:
        unknown = min(entry.keys() - _REQUEST_KEYS)
        raise Problem(400, f"unknown key {shown(unknown)}; allowed: {', '.join(sorted(_REQUEST_KEYS))}")
    if "observation" not in entry:
        raise Problem(400, "`observation` is missing")
    explore = entry.get("explore", False)
    if not isinstance(explore, bool):
        raise Problem(400, f"`explore` must be true or false, found {shown(explore)}")
    episode_id = entry.get("episode_id")
    if episode_id is not None:
        check_id(episode_id, "episode_id")
    request_id = entry.get("request_id")
    if request_id is not None:
        check_id(request_id, "request_id")
    return check_id(entry.get("agent_id"), "agent_id"), episode_id, explore, entry["observation"], request_id


def _parse_feedback(entry: Any) -> Feedback:
    if not isinstance(entry, dict):
        raise Problem(400, f"a feedback must be an object, found {type(entry).__name__}")
    if unknown := entry.keys() - _FEEDBACK_KEYS:
        raise Problem(400, f"unknown key {shown(min(unknown))}; allowed: {', '.join(sorted(_FEEDBACK_KEYS))}")
    reward, cost = _finite(entry.get("reward"), "reward"), entry.get("cost")
    if cost is not None:
        cost = _finite(cost, "cost")
    ended = {}
    for key in ("terminated", "truncated"):
        ended[key] = entry.get(key, False)
        if not isinstance(ended[key], bool):
            raise Problem(400, f"`{key}` must be true or false, found {shown(ended[key])}")
    return Feedback(check_id(entry.get("decision_id"), "decision_id"), reward, **ended, cost=cost)


def _finite(value: Any, name: str) -> float:
    """Not so large either that sums of it were not."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise Problem(400, f"`{name}` must be a finite number, at most {_LARGEST:g} in size, found {shown(value)}")
    return float(value)


def check_id(value: Any, name: str) -> str:
    """An id as it may stand in the log: a printable text of 1 to `MAX_ID` characters, without line breaks.

    Raises:
        Problem: 400 for anything else, under this `name`.
    """
    if not isinstance(value, str) or not value or len(value) > MAX_ID or not value.isprintable():
        found = "a longer one" if isinstance(value, str) and len(value) > MAX_ID else shown(value)
        raise Problem(400, f"`{name}` must be a printable text of 1 to {MAX_ID} characters, found {found}")
    return value


def observation_arrays(values: Any, policy: ServedPolicy) -> NDArray[Any]:
    """Observations (B, *obs) in the policy's dtype: right shape, right kind of numbers, all finite.

    An array of that dtype and shape was read from a tensor, and checked there.

    Raises:
        Problem: 400; of several, it says which.
    """
    if isinstance(values, np.ndarray) and values.dtype == policy.dtype and values.shape[1:] == policy.shape:
        return values
    numbers = flat(values, (len(values), *policy.shape))
    if numbers is not None and (set(map(type, numbers)) <= _NUMBERS or policy.dtype.kind == "b"):
        try:
            found = np.array(numbers).reshape(len(values), *policy.shape)  # all at once costs a tenth of one by one
            return as_dtype(found, policy.dtype, "observation")
        except (ValueError, Problem):
            pass  # what is wrong, and where, is found one by one
    return np.stack([_nth_observation(row, values, policy) for row in range(len(values))])


def check_shapes(values: Any, policy: ServedPolicy) -> None:
    """Refuse observations that are nested otherwise than the policy's; their numbers are not looked at.

    Raises:
        Problem: 400; of several, it says which.
    """
    if not isinstance(values, np.ndarray) and flat(values, (len(values), *policy.shape)) is None:
        for row in range(len(values)):
            _nth_observation(row, values, policy)


def _nth_observation(row: int, values: Any, policy: ServedPolicy) -> NDArray[Any]:
    try:
        return _check_observation(values[row], policy)
    except Problem as problem:
        if len(values) == 1:
            raise
        raise Problem(400, f"requests[{row}]: {problem.message}") from problem


def _check_observation(value: Any, policy: ServedPolicy) -> NDArray[Any]:
    """One observation (*obs)."""
    expected = f"; {policy.manifest.name} observes {list(policy.shape)}"
    return array_of(value, policy.shape, policy.dtype, "observation", expected)


def array_of(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any], name: str, expected: str) -> NDArray[Any]:
    """JSON's lists as an array of this shape and dtype. `expected` ends the refusal of another shape.

    Raises:
        Problem: 400 for text, booleans, ragged lists, another shape, and what the dtype does not hold.
    """
    numbers = flat(value, shape)
    if numbers is None or list in map(type, numbers):
        found, leaf = leading_shape(value, len(shape) + 1)
        check_kinds(leaf, dtype, name)
        if found == shape:
            raise Problem(400, f"`{name}` is ragged: its lists differ in length or depth; expected shape {list(shape)}")
        raise Problem(400, f"`{name}` has shape {list(found)}{expected}")
    check_kinds(numbers, dtype, name)
    return as_dtype(np.array(numbers).reshape(shape), dtype, name)


def flat(value: Any, shape: tuple[int, ...]) -> list[Any] | None:
    """What lists of exactly these lengths hold, in one list; None for other lengths, seen before they are taken apart.
    Whether what they hold are numbers is not looked at."""
    level = [value]
    for size in shape:
        if len(level) == 1:  # the usual case, in a third of the time
            if type(level[0]) is not list or len(level[0]) != size:
                return None
            level = level[0]
        else:
            if set(map(type, level)) - {list} or set(map(len, level)) - {size}:
                return None
            level = list(chain.from_iterable(level))
    return level


def leading_shape(value: Any, max_dims: int) -> tuple[tuple[int, ...], Any]:
    """The lengths of lists along their first entries, and what stands first in the innermost of at most `max_dims`."""
    found = list[int]()
    while type(value) is list and len(found) < max_dims:
        found.append(len(value))
        value = value[0] if value else None
    return tuple(found), value if type(value) is not list else None


def check_kinds(value: Any, dtype: np.dtype[Any], name: str) -> None:
    """Refuse text and booleans within JSON's lists before numpy sees them.

    It would give every text the room of the longest, a terabyte for a body of a megabyte, and make numbers of booleans
    that stand beside numbers.

    Raises:
        Problem: 400, under this `name`; booleans are refused where the dtype is another.
    """
    level, kinds = [value], {type(value)}
    while kinds == {list}:
        level = level[0] if len(level) == 1 else list(chain.from_iterable(level))
        kinds = set(map(type, level))
    if str in kinds or (bool in kinds and dtype.kind != "b"):
        found = "text" if str in kinds else "booleans"
        raise Problem(400, f"`{name}` must hold {dtype.name} numbers, found {found}")


def as_dtype(found: NDArray[Any], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """Numbers as the graph wants them. Nothing is rounded to an integer, nothing becomes infinite silently.

    Raises:
        Problem: 400, under this `name`, for another kind of numbers, and for numbers that the dtype does not hold.
    """
    if found.dtype.kind not in _KINDS[dtype.kind]:
        raise Problem(400, f"`{name}` must hold {dtype.name} numbers, found {_kind(found)}")
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if found.size and (found.min() < limits.min or found.max() > limits.max):
            raise Problem(400, f"`{name}` is outside of {dtype.name}")
    elif dtype.kind == "f" and not _fits_float(found, dtype):
        raise Problem(400, f"`{name}` must be finite in {dtype.name}; NaN, infinity and larger numbers are refused")
    return np.asarray(found, dtype=dtype, order="C")  # `ascontiguousarray` makes a row of a single number


def _fits_float(found: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    limit = _FLOAT_MAX[dtype.itemsize]
    if found.size <= SMALL:
        numbers = found.ravel().tolist()
        return not numbers or (-limit <= min(numbers) and max(numbers) <= limit and not math.isnan(sum(numbers)))
    return bool((np.abs(found) <= limit).all())  # also false for NaN


def _kind(found: NDArray[Any]) -> str:
    names = {"b": "booleans", "U": "text", "S": "text", "O": "null or mixed values", "f": "fractions"}
    names |= {"i": "whole numbers", "u": "whole numbers"}
    return names.get(found.dtype.kind, str(found.dtype))
