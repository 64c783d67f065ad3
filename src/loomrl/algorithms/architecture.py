"""`policy.json`: what to build before a policy's weights are loaded. Needs no torch."""

from typing import Literal

from pydantic import Field

from loomrl.system.schema import Document
from loomrl.types import Json

WEIGHTS = "policy.safetensors"
ARCHITECTURE = "policy.json"


class PolicyArchitecture(Document):
    """`policy.json`: what must be built before a policy's weights can be loaded.

    `algorithm` names the algorithm, `observation` and `action` are the spaces as JSON, `hidden_sizes` the widths of the
    hidden layers. `network` holds what else the class of policies is built by, such as `memory_size`.
    """

    format_version: Literal[1] = 1
    algorithm: str
    observation: Json
    action: Json
    hidden_sizes: list[int]
    activation: str
    normalize_observations: bool
    network: Json = Field(default_factory=dict)  # what else the algorithm's policy needs to be built again
