"""A server whose policy has a shield: what it must not do is not done, and the log says what it chose."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from loomrl.environment.finite.shield import Shield
from loomrl.errors import LoomRLError
from loomrl.serving.process import ServerProcess
from loomrl.system.files import read_json, sha256_file, write_json
from tests.support.policies import BALANCING, discrete_folder

LEFT, RIGHT = [0.0, 0.0, -0.5, 0.0], [0.0, 0.0, 0.5, 0.0]  # where the pole leans


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def shielded(records: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Where the pole leans to the right, action 1, with which the policy would answer, is not allowed."""
    folder = discrete_folder(tmp_path_factory.mktemp("policies") / "champion", BALANCING)
    manifest = read_json(folder / "manifest.json")
    observations = np.array([LEFT, RIGHT, *manifest["probe_observations"]], np.float32)
    allowed = np.ones((len(observations), 2), np.bool_)
    allowed[1, 1] = False
    Shield(observations, allowed, np.zeros(allowed.shape)).save(folder / "shield.safetensors")
    write_json(folder / "manifest.json", manifest | {"shield_sha256": sha256_file(folder / "shield.safetensors")})
    with ServerProcess("cartpole", champion_folder=folder, environment={"LOOMRL_HOME": str(records)}) as server:
        yield server


def written(records: Path) -> list[dict[str, object]]:
    lines = [line for path in sorted(records.rglob("*.jsonl")) for line in path.read_text().splitlines()]
    return [record for record in map(json.loads, lines) if record["kind"] == "decision"]


def test_a_forbidden_action_is_replaced_and_both_are_on_record(shielded: ServerProcess, records: Path) -> None:
    with shielded.client() as client:
        assert client.decide("cart", LEFT).action == 0
        assert client.decide("cart", RIGHT).action == 0
        explored = [client.decide("cart", RIGHT, explore=True) for _ in range(20)]
    assert {(one.action, one.propensity) for one in explored} == {(0, 1.0)}
    free, corrected, *samples = written(records)
    assert free["shield"] is None
    mark = {"chosen": 1, "by": "look-up", "fallback": None}
    assert (corrected["action"], corrected["shield"]) == (0, mark)
    assert mark in [one["shield"] for one in samples]
    assert all(one["shield"] in (None, mark) for one in samples)
    assert all(one["exploration_flag"] for one in samples)


def test_where_nothing_is_known_to_be_safe_nothing_is_decided(shielded: ServerProcess, records: Path) -> None:
    before = len(written(records))
    with shielded.client() as client, pytest.raises(LoomRLError, match="nothing was decided: observation .* no state"):
        client.decide("cart", [0.1, 0.2, 0.3, 0.4])
    assert len(written(records)) == before


def test_a_person_stands_above_it(shielded: ServerProcess) -> None:
    with shielded.client() as client:
        client.set_override(action=1, person="Ada", reason="the pole is held by hand")
        assert client.decide("cart", RIGHT).action == 1
        client.clear_override()
        assert client.decide("cart", RIGHT).action == 0
