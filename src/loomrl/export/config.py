"""How a policy is exported."""

from typing import Literal

from pydantic import Field

from loomrl.algorithms.policies import OPSET
from loomrl.system.schema import Section


class ExportConfig(Section):
    """Parity is demanded on visited and on random observations, of the graph and of every further format."""

    # Beside ONNX, which alone is served; `loomrl.types.TorchFormat`, which imports numpy: threads are not limited yet.
    formats: tuple[Literal["torchscript", "torch_export"], ...] = ()
    opset: int = Field(default=OPSET, ge=13, le=23)  # of ONNX
    parity_visited: int = Field(default=4_096, ge=1)  # observations, at most: as many as evaluation kept
    parity_random: int = Field(default=4_096, ge=1)  # observations
    parity_limit: float = Field(default=1e-4, gt=0)  # the greatest difference, relative: see `parity`
