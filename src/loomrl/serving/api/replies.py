"""What the server answers, as types: the API's description is made of them, and fuzzing holds every answer to it."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from loomrl.serving.api.bodies import Size
from loomrl.serving.api.status import RolesStatus
from loomrl.serving.controls.overrides import Override
from loomrl.serving.controls.plan import KillSwitch, Plan


class RefusalReply(TypedDict):
    """What every refusal has for a body: one sentence that says what was wrong."""

    error: str


class DecisionReply(TypedDict):
    """What an agent is to do, and how that came about."""

    decision_id: str
    action: Any
    policy: str
    version: str
    value: float | None
    propensity: float
    role: Literal["champion", "split", "fallback", "kill_switch", "override"]
    assignment_probability: float
    override: dict[str, Any] | None
    limited: bool
    exploration: bool
    shield: dict[str, Any] | None


class DecisionsReply(TypedDict):
    """Reply of `POST /decide` to a batch: one decision for each of its `requests`, in their order."""

    decisions: list[DecisionReply]


Decided = DecisionReply | DecisionsReply


class Recorded(TypedDict):
    """How many entries of feedback are on record."""

    recorded: Size


class DescribedTensor(TypedDict):
    """Name, shape and datatype of an input or output of a policy's graph."""

    name: str
    shape: list[int]
    datatype: str


class InferredTensor(DescribedTensor):
    """One output; without `data` where it stands as bytes behind the JSON, `parameters.binary_data_size` of them."""

    data: NotRequired[list[Any]]
    parameters: NotRequired[dict[str, int]]


class Inferred(TypedDict):
    """The Open Inference Protocol's answer; `parameters.decision_ids` are those of the rows, parted by commas."""

    model_name: str
    model_version: str
    id: NotRequired[str]
    parameters: dict[str, str]
    outputs: list[InferredTensor]


class ServerMetadata(TypedDict):
    """What this server is, and which extensions of the protocol it has."""

    name: str
    version: str
    extensions: list[str]


class Live(TypedDict):
    """Reply of `GET /v2/health/live`: `live` is true as long as the server runs."""

    live: bool


class Ready(TypedDict):
    """Reply of `GET /v2/health/ready`: `ready` is true where a champion is loaded and can decide."""

    ready: bool


class ModelReady(TypedDict):
    """Reply of `GET /v2/models/{m}/ready`: the policy's name, and whether the version is loaded."""

    name: str
    ready: bool


class ModelMetadata(TypedDict):
    """What a version takes and gives; the first size of a shape, -1, is the batch's."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[DescribedTensor]
    outputs: list[DescribedTensor]


class TritonModelConfig(TypedDict):
    """Reply of `GET /v2/models/{m}/config`: a policy described in the fields of Triton's model configuration."""

    name: str
    platform: str
    backend: str
    version_policy: dict[str, Any]
    max_batch_size: int
    input: list[dict[str, Any]]
    output: list[dict[str, Any]]
    instance_group: list[dict[str, Any]]
    default_model_filename: str
    parameters: dict[str, Any]


class ModelStatistics(TypedDict):
    """One version's executions since the server started, in Triton's schema; times are nanoseconds."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: dict[str, dict[str, int]]
    batch_stats: list[dict[str, Any]]


class StatisticsReply(TypedDict):
    """Reply of `GET /v2/models/stats`: the inference statistics of each version, in the Triton extension's fields."""

    model_stats: list[ModelStatistics]


class IndexEntry(TypedDict):
    """A version that is loaded, or is not, and why."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


class Loaded(TypedDict):
    """Reply to loading or unloading a version: the roles afterwards, each with the version that holds it."""

    roles: RolesStatus


class OverrideInForce(Override):
    """Reply of `POST /override`: the override, and what it names that is not loaded yet."""

    not_loaded: dict[str, str] = {}  # version -> why


class Overrides(TypedDict):
    """Reply of `GET /override`: the overrides in force."""

    overrides: list[Override]


class Lifted(TypedDict):
    """Reply to lifting overrides: the ids of those that were lifted."""

    lifted: list[str]


class PlanInForce(TypedDict):
    """The plan, the revision to send back with a changed one, and the kill switch where it is on."""

    plan: Plan
    revision: int
    kill_switch: KillSwitch | None
    not_loaded: NotRequired[dict[str, str]]  # in the reply to a plan: version that it names -> why


class Monitors(TypedDict):
    """The monitors of every version that acts, and who was taken out."""

    policy: str
    versions: dict[str, Any]
    quarantined: list[dict[str, Any]]
    errors: dict[str, str]
