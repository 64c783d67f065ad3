"""Arrays in records come back as they were, in any dtype a graph has."""

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from loomrl.storage.audit import arrays

DTYPES = ("float16", "float32", "float64", "int8", "int64", "uint8", "uint64", "bool")


@given(st.data())
def test_every_array_comes_back_to_the_bit(data: st.DataObject) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(DTYPES)))
    array = data.draw(st_numpy.arrays(dtype, st_numpy.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)))
    read = arrays.from_json(orjson.loads(orjson.dumps(arrays.to_json(array))))
    assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_what_does_not_lie_in_its_order_is_written_in_it() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert arrays.from_json(arrays.to_json(array)).tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_have_the_fewest_digits_that_mean_the_same(dtype: str) -> None:
    array = np.array([0.1, 1 / 3, -0.0, 1e30], dtype)
    assert np.array(arrays.numbers(array), dtype).tobytes() == array.tobytes()
    assert arrays.numbers(array)[0] == 0.1
