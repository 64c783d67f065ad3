"""Arrays as records of several decisions hold them: their bytes in base64, with dtype and shape.

As text, numbers cost more to write, to hash and to read again than the decisions that came of them.
"""

from base64 import b64decode, b64encode
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from loomrl.types import Json


def to_json(array: NDArray[Any]) -> Json:
    """An array as it stands in a record: its bytes in `base64`, its `dtype` and its `shape`."""
    return {"base64": b64encode(array.tobytes()).decode(), "dtype": array.dtype.str, "shape": array.shape}


def is_array(values: Any) -> bool:
    """Whether the values of a record are an array, and no list of them."""
    return isinstance(values, dict) and "base64" in values


def from_json(values: Json) -> NDArray[Any]:
    """The array that `to_json` wrote, with its shape and dtype; it cannot be written to.

    Raises:
        KeyError, ValueError: for JSON that `to_json` did not write.
    """
    return np.frombuffer(b64decode(values["base64"]), values["dtype"]).reshape(values["shape"])


def numbers(array: NDArray[Any]) -> Any:
    """The array as nested lists of Python numbers, (of one value: that number), as JSON has them: floats with the
    fewest digits that mean the same in the array's dtype."""
    return orjson.loads(orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY))
