"""The bodies of the Trajectory API: what is read, what is refused, and the one form in which groups are kept.

Every number must be finite, for JSON has no others: one NaN in a group would make a whole batch unreadable.
"""

import math
from typing import Annotated, Any, NotRequired, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import from_json, to_json
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

_MAX_ERRORS = 20  # told of one body
_FREE_KEYS = ("messages", "generation_params", "overrides", "group_overrides", "images")  # hold anything

T = TypeVar("T")
Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Share = Annotated[float, Field(ge=-1e9, le=1e9)]
Items = Annotated[list[T], Field(fail_fast=True)]  # a wrong list has one error, not one for each entry
Floats = Items[Items[float]]


class Invalid(Exception):
    """A request body that is refused; answered as `422 {"detail": [...]}`. Each entry of `detail` has `type`, `msg` and
    `loc`, the place: keys and indices from "body" on."""

    def __init__(self, detail: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in detail))
        self.detail = detail


class Body(BaseModel):
    """Base of request bodies: numbers must be finite, and unknown fields are ignored."""

    model_config = ConfigDict(allow_inf_nan=False)


class Registration(Body):
    """The body of a trainer's registration; the first one since the start or a reset counts."""

    wandb_group: str
    wandb_project: str
    batch_size: Annotated[Int64, Field(ge=1)]  # sequences
    max_token_len: Int64
    checkpoint_dir: str
    save_checkpoint_interval: Int64
    starting_step: Int64
    num_steps: Int64


class EnvironmentRegistration(Body):
    """The body of an environment's registration: its name, sizes and share of batches."""

    max_token_length: Int64
    desired_name: str
    weight: Share
    group_size: Annotated[Int64, Field(ge=1)]  # sequences
    min_batch_allocation: Share | None = None  # share of a batch


class EnvironmentIdentifier(Body):
    """The body of a request by a registered environment: its `env_id`."""

    env_id: Int64


class TrainerPolicyVersion(Body):
    """The body of `POST /policy_version`, an addition to Atropos' API: the trainer's current policy version."""

    version: Annotated[Int64, Field(ge=0)]


@with_config(ConfigDict(extra="allow"))
class WireMessage(TypedDict):
    """One message of a conversation; other keys are kept."""

    role: Any
    content: Any


@with_config(ConfigDict(allow_inf_nan=False))
class ScoredGroup(TypedDict):
    """Sequences that answer one prompt, with their scores. All of it is what trainers get."""

    tokens: Items[Items[int]]  # ids; here and below a list for each sequence, of one entry for each token
    masks: Items[Items[int]]  # the token's id where it is learnt, else -100
    scores: Items[float]  # one for each sequence
    advantages: NotRequired[Floats | None]
    ref_logprobs: NotRequired[Floats | None]  # by a reference policy
    messages: NotRequired[Items[Items[WireMessage]] | None]
    generation_params: NotRequired[dict[str, Any] | None]
    inference_logprobs: NotRequired[Floats | None]  # by the policy that drew the tokens
    overrides: NotRequired[Items[dict[str, Any]] | None]  # settings of one sequence, such as its `temperature`
    group_overrides: NotRequired[dict[str, Any] | None]  # settings of all of them
    images: NotRequired[Any]
    env_id: NotRequired[Int64 | None]
    distill_token_ids: NotRequired[Items[Items[Items[int]]] | None]
    distill_logprobs: NotRequired[Items[Floats] | None]


GROUP_KEYS = tuple(ScoredGroup.__annotations__)
# Before any group there is none to show, and these keys are all that is said of it.
NO_EXAMPLE = orjson.dumps({key: [] for key in (*GROUP_KEYS[:6], "generation_params", "inference_logprobs", "images")})

B = TypeVar("B", bound=Body)
_group: TypeAdapter[ScoredGroup] = TypeAdapter(ScoredGroup)
_groups: TypeAdapter[list[ScoredGroup]] = TypeAdapter(list[ScoredGroup])
_empty_group = dict.fromkeys(GROUP_KEYS)
Detail = list[dict[str, Any]]


def parse(kind: type[B], body: bytes) -> B:
    """A JSON body as an instance of `kind`, checked.

    Raises:
        Invalid: naming the fields that are missing or wrong (20 at most), or saying that the body is no JSON.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise Invalid(_detail(error)) from error


def parse_group(body: bytes) -> ScoredGroup:
    """One group from a JSON body; all its numbers are finite.

    Raises:
        Invalid: naming the fields that are missing or wrong (20 at most), or saying that the body is no JSON.
    """
    try:
        group = _group.validate_json(body)
    except ValidationError as error:
        raise Invalid(_detail(error)) from error
    if key := _not_finite_key(group):
        raise Invalid(refused("not a finite number", key))
    return group


def parse_groups(body: bytes, lenient: bool = False) -> tuple[dict[int, ScoredGroup], dict[int, Detail]]:
    """The good groups of a JSON list, and what is wrong with the others (as `Invalid.detail`), both by the index in the
    list.

    A group that holds a number which is not finite costs no other group anything. Any other error refuses the whole
    list, as the wire has it, unless the sender is `lenient`.

    Raises:
        Invalid: for a body that is no JSON list; unless `lenient` also where a field is missing or wrong, naming it.
    """
    try:
        groups = _groups.validate_json(body)
        if not any(map(_not_finite_key, groups)):
            return dict(enumerate(groups)), {}
    except ValidationError as error:
        if not lenient and any(one["type"] != "finite_number" for one in error.errors(include_url=False)):
            raise Invalid(_detail(error)) from error
    try:
        items = from_json(body)
    except ValueError as error:
        raise Invalid(refused(f"Invalid JSON: {error}")) from error
    if not isinstance(items, list):
        raise Invalid(refused("Input should be a valid list"))
    return _sorted_out(items)


def encode_group(group: ScoredGroup) -> bytes:
    """A group as trainers get it, JSON in UTF-8: all keys, null where its environment sent none."""
    complete = {**_empty_group, **group}
    try:
        return orjson.dumps(complete)
    except TypeError:  # an integer beyond 64 bits
        return to_json(complete)


def refused(message: str, *place: str | int, kind: str = "value_error") -> Detail:
    """The `Invalid.detail` of one error: its message, its `place` below the body (keys and indices), and its type."""
    return [{"type": kind, "loc": ["body", *place], "msg": message}]


def _sorted_out(items: list[Any]) -> tuple[dict[int, ScoredGroup], dict[int, Detail]]:
    good: dict[int, ScoredGroup] = {}
    bad: dict[int, Detail] = {}
    for index, item in enumerate(items):
        try:
            group = _group.validate_python(item)
        except ValidationError as error:
            bad[index] = _detail(error, index)
            continue
        if key := _not_finite_key(group):
            bad[index] = refused("not a finite number", index, key)
        else:
            good[index] = group
    return good, bad


def _not_finite_key(group: ScoredGroup) -> str | None:
    """A key below which something is not finite, of those whose numbers were not looked at."""
    return next((key for key in _FREE_KEYS if _holds_no_number(group.get(key))), None)


def _holds_no_number(value: object) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, dict):
        return any(map(_holds_no_number, value.values()))
    return isinstance(value, list) and any(map(_holds_no_number, value))


def _detail(error: ValidationError, *place: int) -> Detail:
    """As FastAPI tells it, without the input: it may be large, and its sender has it."""
    found = error.errors(include_url=False, include_input=False, include_context=False)[:_MAX_ERRORS]
    return [{"type": one["type"], "loc": ["body", *place, *one["loc"]], "msg": one["msg"]} for one in found]
