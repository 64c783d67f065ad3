"""Ray, where tests begin clusters."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def ray_without_what_nobody_uses() -> Iterator[None]:
    """In a cluster, workers that begin before anybody asks for one; in each training, a process for clouds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_prestart_worker_first_driver", "0")
        patch.setenv("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")
        yield
