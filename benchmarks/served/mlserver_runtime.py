"""MLServer's runtime for the graph; imported in MLServer's own environment."""

import numpy as np
import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class OnnxRuntime(MLModel):
    """Answers with the actions, as the bare handler does."""

    async def load(self) -> bool:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            self.settings.parameters.uri, options, providers=["CPUExecutionProvider"]
        )
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        observations = NumpyCodec.decode_input(payload.inputs[0]).astype(np.float32)
        (actions,) = self._session.run(["action"], {"observation": observations})
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("action", actions)])
