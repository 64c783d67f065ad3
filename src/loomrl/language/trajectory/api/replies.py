"""What hubs and engines answer, as types: their descriptions are made of them, and fuzzing holds every answer to it."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

TEXT_TYPE = "text/plain"


class FieldError(TypedDict):
    """An error in a body: its type, its place and a message."""

    type: str
    loc: list[str | int]
    msg: str


class WireRefusal(TypedDict):
    """The body of every refusal: one sentence, or the list of errors in the request's body."""

    detail: str | list[FieldError]


class Greeting(TypedDict):
    """The answer of `GET /`: the text by which Atropos clients recognise a hub."""

    message: str


class Sizes(TypedDict):
    """The answer of `GET /info`: batch size in sequences and sequence length in tokens; -1 before a trainer
    registers."""

    batch_size: int
    max_token_len: int


class WandbNames(TypedDict):
    """The Weights & Biases group and project that the trainer registered; null before it did."""

    group: str | None
    project: str | None


class QueueStatus(TypedDict):
    """The answer of `GET /status`: batches formed so far, and groups that wait."""

    current_step: int
    queue_size: int


class Registered(TypedDict):
    """The answer of `POST /register`: a random number that identifies the trainer."""

    uuid: int


class EnvironmentJoined(TypedDict):
    """An environment's number and what the trainer registered; without a trainer only that it has to wait."""

    status: str
    env_id: NotRequired[int]
    wandb_name: NotRequired[str]
    checkpoint_dir: NotRequired[str]
    starting_step: NotRequired[int]
    checkpoint_interval: NotRequired[int]
    num_steps: NotRequired[int]


class Done(TypedDict):
    """The answer of a change: whether it succeeded, and if not, why."""

    status: Literal["success", "failure"]
    error: NotRequired[str]


class EnvironmentStatus(TypedDict):
    """The answer of `GET /status-env`: the state of an environment's queue and its weight."""

    current_step: int
    queue_size: int
    unallocated_fraction: float
    self_queue_size: int
    max_group_size: int
    env_weight: float


class GroupAccepted(TypedDict):
    """The answer of `POST /scored_data`: whether the group is queued, or buffered with how many sequences of its
    environment."""

    status: Literal["received", "buffered"]
    buffer_size: NotRequired[int]


class RejectedGroup(TypedDict):
    """A group of a list that was rejected: its index and its errors."""

    index: int
    detail: list[FieldError]


class GroupsAccepted(TypedDict):
    """The answer of `POST /scored_data_list`: how many groups were accepted, buffered and rejected."""

    status: Literal["received"]
    groups_processed: int
    buffered: NotRequired[int]
    last_buffer_size: NotRequired[int]
    rejected: NotRequired[list[RejectedGroup]]


class NextBatch(TypedDict):
    """The groups of a batch, null where none is whole; with a lease its number and what is known of the groups."""

    batch: list[dict[str, Any]] | None
    status: NotRequired[str]
    message: NotRequired[str]
    batch_id: NotRequired[int]
    policy_versions: NotRequired[list[int | None]]
    received_steps: NotRequired[list[int]]


class PolicyVersionReply(TypedDict):
    """The policy version that the trainer reported last; null before it did."""

    version: int | None


class HubReport(TypedDict):
    """The answer of `GET /hub`: registration, queues, counts and environments."""

    registration: dict[str, Any] | None
    step: int
    policy_version: int | None
    queues: dict[str, int]
    counts: dict[str, float]
    dropped: dict[str, int]
    environments: list[dict[str, Any]]
