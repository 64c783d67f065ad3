"""A Ray cluster for tests that may share one."""

from collections.abc import Iterator
from typing import Any

import pytest

from loomrl.training.config import DistributedConfig
from loomrl.training.distributed.cluster import cluster


@pytest.fixture(scope="package")
def ray_cluster() -> Iterator[Any]:
    """The module `ray`, connected to a cluster that is begun and ended as the stage does."""
    with cluster(DistributedConfig(num_learners=3)) as ray:
        yield ray
