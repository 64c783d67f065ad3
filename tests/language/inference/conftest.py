"""A served engine for all tests."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from loomrl.language.inference.process import EngineProcess
from tests.support.language_policies import language_policy
from tests.support.preforked import Preforked


@pytest.fixture(scope="package", autouse=True)
def engines_are_copies() -> Iterator[None]:
    """Of one process that has imported what an engine needs."""
    with Preforked({"loomrl.language.inference": ("loomrl.language.inference.server", "torch", "transformers")}):
        yield


@pytest.fixture(scope="session")
def policy_folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of policies with the seeds 0, 1, 2."""
    folders = [tmp_path_factory.mktemp("policies") / str(seed) for seed in range(3)]
    for seed, folder in enumerate(folders):
        language_policy(seed).save(folder)
    return folders


@pytest.fixture(scope="session")
def engine_process(policy_folders: list[Path]) -> Iterator[EngineProcess]:
    with EngineProcess(policy=policy_folders[0]) as process:
        yield process


@pytest.fixture
def server(engine_process: EngineProcess, policy_folders: list[Path]) -> Iterator[httpx.Client]:
    """A client of a served engine that goes on, by the policy of seed 0 as version 0."""
    with httpx.Client(base_url=engine_process.url, trust_env=False, timeout=60) as client:
        client.post("/resume").raise_for_status()
        again = {"model_path": str(policy_folders[0]), "weight_version": "0"}
        client.post("/update_weights_from_disk", json=again).raise_for_status()
        yield client
