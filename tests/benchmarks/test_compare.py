"""The comparison with the peers: the page comes from the runs, and figures are what they are said to be."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts, not a package

from peers import render, summary  # noqa: E402
from peers.cases import CASES, Case, Trainer  # noqa: E402
from peers.execute import write  # noqa: E402

BY_NAME = {case.name: case for case in CASES}
RUNS = sorted((ROOT / "benchmarks" / "results" / "raw").rglob("*.json"))


def test_results_and_page_are_in_step_with_the_runs() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "compare.py"), "render", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", RUNS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_run_is_what_its_case_asks_for(path: Path) -> None:
    run = json.loads(path.read_text())
    case = BY_NAME[path.parent.name]
    trainer = next(one for one in case.trainers if one.name == run["run"]["trainer"])
    assert path.stem == f"{trainer.name}-{run['run']['seed']}"
    assert run["run"]["settings"] == json.loads(json.dumps(trainer.settings))
    assert run["run"]["environment"] == case.environment
    assert run["env_steps"] >= (trainer.total_env_steps or case.total_env_steps) or case.stop_at_return is not None


def test_every_case_has_its_place_on_the_page() -> None:
    page = render.PAGE.read_text()
    assert [name for name in BY_NAME if f"<!-- table: {name} -->" not in page] == []


def case_of(kind: str, **values: object) -> Case:
    trainers = (Trainer("sb3", "ppo", "its defaults"), Trainer("loomrl", "ppo", "the same"))
    return Case("a_case", "A case", kind, "CartPole-v1", 1000, trainers, seeds=(1, 2), **values)  # type: ignore[arg-type]


def keep(case: Case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, runs: dict[str, list[dict[str, object]]]) -> None:
    """Runs of a case, as `learn` and `speed` leave them."""
    monkeypatch.setattr(summary, "raw_path", lambda case, trainer, seed: tmp_path / f"{trainer.name}-{seed}.json")
    machine = {"processor": "P", "cores": 2, "system": "S", "python": "3", "load": 0.5}
    for name, rows in runs.items():
        for seed, row in enumerate(rows, start=1):
            run = {"algorithm": "ppo", "settings": {}, "num_envs": 1, "seed": seed}
            document = {"run": run, "machine": machine, "versions": {"torch": "2"}, "env_steps": 1000, **row}
            write(tmp_path / f"{name}-{seed}.json", document)


def test_speed_starts_after_the_warm_up_and_ratios_are_within_rounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = case_of("speed", warm_up_env_steps=100)
    slow = [{"marks": [[0, 0.0], [100, 10.0], [1000, 19.0]]}, {"marks": [[0, 0.0], [100, 10.0], [1000, 28.0]]}]
    fast = [{"marks": [[0, 0.0], [100, 10.0], [1000, 11.0]]}, {"marks": [[0, 0.0], [100, 10.0], [1000, 13.0]]}]
    keep(case, monkeypatch, tmp_path, {"sb3": slow, "loomrl": fast})
    document = summary.summarize(case)
    assert document is not None
    assert document["trainers"]["sb3"]["values"] == pytest.approx([100.0, 50.0])
    assert document["trainers"]["loomrl"]["values"] == pytest.approx([900.0, 300.0])
    assert document["trainers"]["loomrl"]["ratio"] == pytest.approx({"median": 7.5, "min": 6.0, "max": 9.0})
    assert "| **600** (300 to 900) | **7.5** (6.0 to 9.0) |" in render.table(document)


def test_a_seed_that_never_solved_is_counted_not_dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = case_of("solve", stop_at_return=475.0)
    solved = {"greedy": [[256, 100.0, 0.5], [512, 480.0, 2.0], [768, 500.0, 9.0]]}
    never = {"greedy": [[256, 100.0, 0.5]]}
    keep(case, monkeypatch, tmp_path, {"sb3": [solved, solved], "loomrl": [{"greedy": [[256, 490.0, 0.1]]}, never]})
    document = summary.summarize(case)
    assert document is not None
    ours = document["trainers"]["loomrl"]
    assert (ours["num_solved"], ours["num_runs"], ours["values"]) == (1, 2, [0.1, None])
    assert document["trainers"]["sb3"]["steps_to_solve"] == [512, 512]
    assert ours["ratio"]["median"] == pytest.approx(20.0)
    assert "1 of 2" in render.table(document)


def test_every_trainer_has_a_name_to_be_shown_by() -> None:
    assert {trainer.name for case in CASES for trainer in case.trainers} <= set(render.NAMES)


def test_overhead_is_all_that_is_not_collecting_updating_or_validating(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = replace(case_of("overhead"), trainers=(Trainer("stage", "ppo", "the stages"),))
    runs = [
        {
            "process_seconds": process,
            "snapshot_seconds": 0.5,
            "loop_seconds": {"start": 1.0, "collect": 4.0, "update": 6.0},
        }
        for process in (11.2, 11.4)
    ]
    keep(case, monkeypatch, tmp_path, {"stage": runs})
    document = summary.summarize(case)
    assert document is not None
    assert document["trainers"]["stage"]["values"] == pytest.approx([7.0, 9.0])
    assert "| **8.0 %** (7.0 % to 9.0 %) |" in render.table(document)


@pytest.mark.long
def test_the_clocks_of_a_stage_are_on_what_it_does(tmp_path: Path) -> None:
    run = {
        "algorithm": "ppo",
        "environment": "CartPole-v1",
        "seed": 1,
        "total_env_steps": 20_000,
        "greedy_every": 10_000,
        "greedy_episodes": 2,
        "greedy_first_seed": 1,
        "stop_at_return": None,
        "settings": {},
    }
    command = [sys.executable, str(ROOT / "benchmarks" / "peers" / "stage.py"), json.dumps(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["env_steps"] >= run["total_env_steps"]
    assert all(seconds > 0.0 for seconds in figures["loop_seconds"].values())
    assert sum(figures["loop_seconds"].values()) < figures["process_seconds"]


def test_learning_judges_the_last_policy_of_each_seed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = case_of("learning", greedy_every=500)
    row = {"greedy": [[500, 900.0, 1.0], [1000, 300.0, 2.0]], "training": [[100, 1.0], [950, 10.0], [1000, 20.0]]}
    other = {"greedy": [[500, 0.0, 1.0], [1000, 100.0, 2.0]], "training": [[1000, 40.0]]}
    keep(case, monkeypatch, tmp_path, {"loomrl": [row, other]})
    document = summary.summarize(case)
    assert document is not None
    ours = document["trainers"]["loomrl"]
    assert ours["returns"] == [300.0, 100.0]
    assert ours["training_returns"] == [15.0, 40.0]
    mean = ours["interquartile_mean"]
    assert (mean["estimate"], mean["low"], mean["high"]) == (200.0, 100.0, 300.0)


def test_a_page_takes_the_tables_of_the_cases_it_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    case = case_of("learning", greedy_every=500)
    keep(case, monkeypatch, tmp_path, {"sb3": [{"greedy": [[1000, 5.0, 1.0]], "training": []}]})
    document = summary.summarize(case)
    page = "above\n<!-- table: a_case -->\nold\n<!-- end -->\nbelow\n<!-- table: other -->\n<!-- end -->\n"
    assert document is not None
    drawn = render.rendered(page, {"a_case": document})
    assert "old" not in drawn
    assert "| stable-baselines3 | its defaults | **5** |" in drawn
    assert "Not measured yet." in drawn
    assert render.rendered(drawn, {"a_case": document}) == drawn
