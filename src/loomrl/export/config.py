"""How a policy is exported."""

from typing import Literal

from pydantic import Field

from loomrl.algorithms.policies import OPSET
from loomrl.system.schema import Section


class ExportConfig(Section):
    """Parity is demanded on visited and on random observations, of the graph and of every further format."""

    formats: tuple[Literal["torchscript", "torch_export"], ...] = ()  # beside ONNX, which alone is served
    opset: int = Field(default=OPSET, ge=13, le=23)
    parity_visited: int = Field(default=4_096, ge=1)
    parity_random: int = Field(default=4_096, ge=1)
    parity_limit: float = Field(default=1e-4, gt=0)
