"""What hubs and engines answer, as types: their descriptions are made of them, and fuzzing holds every answer to it."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

TEXT_TYPE = "text/plain"


class Wrong(TypedDict):
    """What is wrong with a body, and where."""

    type: str
    loc: list[str | int]
    msg: str


class WireRefusal(TypedDict):
    """What every refusal has for a body: one sentence, or what is wrong with the body, place by place."""

    detail: str | list[Wrong]


class Greeting(TypedDict):
    """The answer of `GET /`: the text by which Atropos clients recognise a hub."""

    message: str


class Sizes(TypedDict):
    """What the trainer registered; -1 before there is one."""

    batch_size: int
    max_token_len: int


class WandbNames(TypedDict):
    """The Weights & Biases group and project that the trainer registered; null before it did."""

    group: str | None
    project: str | None


class QueueStatus(TypedDict):
    """How many batches were handed out, and how many groups wait."""

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
    """Whether it was done, and why not."""

    status: Literal["success", "failure"]
    error: NotRequired[str]


class EnvironmentStatus(TypedDict):
    """What an environment is told of its queue and its weight."""

    current_step: int
    queue_size: int
    unallocated_fraction: float
    self_queue_size: int
    max_group_size: int
    env_weight: float


class GroupTaken(TypedDict):
    """Whether a group waits in the queue, or for others of its environment: for how many sequences of them."""

    status: Literal["received", "buffered"]
    buffer_size: NotRequired[int]


class RejectedGroup(TypedDict):
    """A group that was not taken, by its place."""

    index: int
    detail: list[Wrong]


class GroupsTaken(TypedDict):
    """How many groups of a list were taken."""

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


class VersionTold(TypedDict):
    """The policy's version, as the trainer said."""

    version: int | None


class HubShown(TypedDict):
    """Everything a person asks first."""

    registration: dict[str, Any] | None
    step: int
    policy_version: int | None
    queues: dict[str, int]
    counts: dict[str, float]
    dropped: dict[str, int]
    environments: list[dict[str, Any]]
