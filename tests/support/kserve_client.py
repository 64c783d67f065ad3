"""What the KServe SDK makes of a policy server. Runs in `.venv-kserve`, for its pins exclude ours.

    .venv-kserve/bin/python tests/support/kserve_client.py URL MODEL '[[0.0, 0.1, 0.2, 0.3]]'

Prints one JSON object: what it found ready, and the outputs by how they were asked for.
"""

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput


async def main(url: str, model: str, observations: np.ndarray) -> dict[str, Any]:
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    try:
        return {
            "live": await client.is_server_live(url),
            "ready": await client.is_server_ready(url),
            "model_ready": await client.is_model_ready(url, model),
            "other_ready": await client.is_model_ready(url, "other"),
            "json": await infer(client, url, model, observations, as_bytes=False),
            "binary": await infer(client, url, model, observations, as_bytes=True),
        }
    finally:
        await client.close()


async def infer(
    client: InferenceRESTClient, url: str, model: str, observations: np.ndarray, as_bytes: bool
) -> dict[str, Any]:
    tensor = InferInput("observation", list(observations.shape), "FP32")
    tensor.set_data_from_numpy(observations, binary_data=as_bytes)
    outputs = [RequestedOutput(name, parameters={"binary_data": as_bytes}) for name in ("action", "value", "logits")]
    request = InferRequest(model, [tensor], request_id="r-1", request_outputs=outputs)
    answer = await client.infer(url, request, model_name=model)
    found = {output.name: output.as_numpy().tolist() for output in answer.outputs}
    return {"id": answer.id, "model": answer.model_name, **found}


if __name__ == "__main__":
    url, model, observations = sys.argv[1:]
    print(json.dumps(asyncio.run(main(url, model, np.array(json.loads(observations), np.float32)))))
