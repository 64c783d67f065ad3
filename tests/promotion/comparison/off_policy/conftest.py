"""Linear policies that really decide, as champion and challenger."""

from collections.abc import Callable

import numpy as np
import pytest

from loomrl.serving.policy.model import ServedPolicy
from tests.support.policies import discrete_folder

Served = Callable[[np.ndarray, str], ServedPolicy]


@pytest.fixture(scope="session")
def linear(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Makes a policy of these weights under this version."""

    def made(weights: np.ndarray, version: str) -> ServedPolicy:
        return ServedPolicy.load(discrete_folder(tmp_path_factory.mktemp("policy"), weights), version)

    return made
