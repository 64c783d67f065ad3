"""How a policy is exported."""

from pydantic import Field

from loomrl.algorithms.policies import OPSET
from loomrl.system.schema import Section
from loomrl.types import TorchFormat


class ExportConfig(Section):
    """Parity is demanded on visited and on random observations, of the graph and of every further format."""

    formats: tuple[TorchFormat, ...] = ()  # beside ONNX, which alone is served
    opset: int = Field(default=OPSET, ge=13, le=23)  # of ONNX
    parity_visited: int = Field(default=4_096, ge=1)  # observations, at most: as many as evaluation kept
    parity_random: int = Field(default=4_096, ge=1)  # observations
    parity_limit: float = Field(default=1e-4, gt=0)  # the greatest difference, relative: see `parity`
