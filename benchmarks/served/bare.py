"""The bare handler: the inference protocol over raw ASGI and the graph, nothing else. What any server must cost."""

import os
from typing import Any

import numpy as np
import onnxruntime
import orjson

_options = onnxruntime.SessionOptions()
_options.intra_op_num_threads = _options.inter_op_num_threads = 1
_session = onnxruntime.InferenceSession(os.environ["GRAPH"], _options, providers=["CPUExecutionProvider"])
_HEADERS = [(b"content-type", b"application/json")]


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers every POST with the actions for its one tensor."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    message = await receive()
    body = message["body"]
    while message["more_body"]:
        message = await receive()
        body += message["body"]
    (tensor,) = orjson.loads(body)["inputs"]
    observations = np.array(tensor["data"], np.float32).reshape(tensor["shape"])
    (actions,) = _session.run(["action"], {"observation": observations})
    output = {"name": "action", "shape": list(actions.shape), "datatype": "INT64", "data": actions.ravel().tolist()}
    answer = orjson.dumps({"model_name": "bench", "model_version": "1", "outputs": [output]})
    length = (b"content-length", b"%d" % len(answer))
    await send({"type": "http.response.start", "status": 200, "headers": [*_HEADERS, length]})
    await send({"type": "http.response.body", "body": answer})
