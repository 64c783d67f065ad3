"""What agents send, as types for the API's description; `requests` and `inference_protocol` read it by hand.

Bodies of operators are read by their own models: `OverrideOrder`, `PlanOrder`, `KillSwitchOrder`.
"""

from typing import Annotated, Any, NotRequired

from pydantic import Field, with_config
from typing_extensions import TypedDict

from loomrl.serving.decisions.requests import MAX_ID

Id = Annotated[str, Field(min_length=1, max_length=MAX_ID, description="Printable text.", examples=["cart-7"])]
Size = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@with_config(extra="forbid")
class OneAsk(TypedDict):
    """What one agent observes. Asked again under its `request_id`, it gets the decision it had."""

    agent_id: Id
    episode_id: NotRequired[Id | None]
    observation: Any
    explore: NotRequired[bool]
    request_id: NotRequired[Id | None]


@with_config(extra="forbid")
class ManyAsks(TypedDict):
    """What several agents observe: all are answered, or none. Of several workers each decides for agents of its own."""

    requests: Annotated[list[OneAsk], Field(min_length=1)]


@with_config(extra="forbid")
class OneFeedback(TypedDict):
    """What followed one decision: its reward, an optional cost, and whether the episode ended."""

    decision_id: Id
    reward: Finite
    terminated: NotRequired[bool]
    truncated: NotRequired[bool]
    cost: NotRequired[Finite | None]


@with_config(extra="forbid")
class ManyFeedback(TypedDict):
    """What came of several decisions: all is recorded, or nothing; of several workers, at each of them."""

    feedback: Annotated[list[OneFeedback], Field(min_length=1)]


Decide, Feedback = OneAsk | ManyAsks, OneFeedback | ManyFeedback


class Tensor(TypedDict):
    """Numbers as `data`, or as bytes behind the JSON, `parameters.binary_data_size` of them."""

    name: str
    shape: list[Size]
    datatype: str
    data: NotRequired[Any]
    parameters: NotRequired[dict[str, Any] | None]


class Output(TypedDict):
    """An output by its name; with `parameters.binary_data` as bytes behind the JSON."""

    name: str
    parameters: NotRequired[dict[str, Any] | None]


class Infer(TypedDict):
    """The Open Inference Protocol's request; each row of the tensor is a decision for `parameters.agent_id`."""

    id: NotRequired[Annotated[str, Field(max_length=MAX_ID)] | None]
    parameters: NotRequired[dict[str, Any] | None]
    inputs: Annotated[list[Tensor], Field(min_length=1, max_length=1)]
    outputs: NotRequired[list[Output] | None]


class Index(TypedDict):
    """Whether only versions that are loaded are shown."""

    ready: NotRequired[bool]


class Load(TypedDict):
    """Triton's clients send `parameters`; none is read: what is loaded is what the registry names."""

    parameters: NotRequired[Annotated[dict[str, Any], Field(max_length=0)] | None]
