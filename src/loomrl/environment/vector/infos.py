"""Infos of several environments in one array for each key, in which no number is cut.

Gymnasium gives the array the type of the first environment that tells the key in a step: where that one said 0 and
another 0.7, the other's became 0.
"""

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

_NUMBERS = (bool, int, float, np.number, np.bool_, np.ndarray)


class UncutInfos(VectorEnv[Any, Any, Any]):
    """For vectors of environments that gather infos one by one: an array that cannot hold a number is widened."""

    def _add_info(self, vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int) -> dict[str, Any]:
        for key in vector_infos.keys() & env_info.keys():
            array, value = vector_infos[key], env_info[key]
            is_narrow = isinstance(array, np.ndarray) and array.dtype.kind in "biuf" and array.dtype != np.float64
            if is_narrow and isinstance(value, _NUMBERS):
                wide = np.result_type(array.dtype, np.asarray(value).dtype)
                if wide != array.dtype:
                    vector_infos[key] = array.astype(wide)
        return super()._add_info(vector_infos, env_info, env_num)
