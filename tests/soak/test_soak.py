"""The checks of `make soak` with small numbers."""

import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.soak import __main__ as soak
from tests.soak import bad_versions, fuzzed_api, fuzzed_engine, fuzzed_hub, kills, swaps
from tests.support.attacks import ATTACKS


@pytest.mark.long
@pytest.mark.usefixtures("ready_home")
def test_swaps_lose_no_request_and_never_go_back(tmp_path: Path) -> None:
    found = swaps.run(tmp_path, num_swaps=20)
    assert found["num_requests"] >= 20


@pytest.mark.long
@pytest.mark.usefixtures("ready_home")
def test_bad_versions_are_refused_and_leave_the_champion_alone(tmp_path: Path) -> None:
    found = bad_versions.run(tmp_path, num_versions=30)
    assert len(found["by_kind"]) == len(ATTACKS)


@pytest.mark.usefixtures("ready_home")
@pytest.mark.long
def test_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    found = kills.run(tmp_path, num_kills=4, num_decisions=8_000)
    assert (found["num_kills"], found["num_segments"]) == (4, 5)
    assert found["num_decisions"] >= 8_000
    assert found["num_answers_lost"] > 0


@pytest.mark.long
@pytest.mark.usefixtures("loomrl_home")
@pytest.mark.parametrize("check", [fuzzed_api, fuzzed_engine, fuzzed_hub])
def test_a_fuzzed_api_answers_what_it_describes(tmp_path: Path, check: ModuleType) -> None:
    found = check.run(tmp_path, seconds=0.0, num_examples=2)
    assert found["with_tokens"]["num_accepted"].keys() == {"nobody", "decide", "observe", "operate"}
    assert min(found["with_tokens"]["num_accepted"].values()) > 5
    assert found["without_tokens"]["num_accepted"]["nobody"] > 100


def test_every_check_is_found() -> None:
    fuzzed = {"fuzzed_api", "fuzzed_engine", "fuzzed_hub"}
    assert {"bad_versions", *fuzzed, "host_faults", "hub_kills", "kills", "lost_hosts", "swaps"} <= set(soak.CHECKS)


def test_results_are_merged_per_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "RESULTS", tmp_path / "soak.json")
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path))
    (tmp_path / "soak.json").write_text(json.dumps({"other": {"num_kills": 200}}))
    monkeypatch.setattr(swaps, "run", lambda folder: {"num_swaps": 3})
    soak.main(["swaps"])
    kept = json.loads((tmp_path / "soak.json").read_text())
    assert (kept["other"], kept["swaps"]["num_swaps"]) == ({"num_kills": 200}, 3)
