"""A search with real, tiny trainings: deterministic, resumed after a kill, judged by the mean over seeds."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.environment.sources.stage_code import stage_code
from loomrl.errors import ConfigError, LoomRLError
from loomrl.runs.config import parse_overrides
from loomrl.runs.stages import ORDER
from loomrl.runs.tuning import search
from loomrl.runs.tuning.search import Trial, TuningStudy, best
from loomrl.training.train import train_policy

PROJECT = Path(__file__).resolve().parents[3]
LEARNING_RATE = {"low": 0.0001, "high": 0.01, "log": True}
TUNING = {
    "total_env_steps": 64,
    "parameters": {
        "training.parameters.learning_rate": LEARNING_RATE,
        "training.parameters.n_epochs": {"low": 1, "high": 3},
        "training.parameters.normalize_rewards": {"choices": [True, False]},
    },
}
POLE = {
    "name": "pole",
    "environment": {"id": "CartPole-v1", "backend": "serial"},
    "training": {
        "seed": 3,
        "total_env_steps": 100_000,
        "checkpoint_interval_env_steps": 64,
        "validation": {"interval_env_steps": 64, "num_episodes": 2},
        "parameters": {"num_envs": 2, "rollout_length": 32, "batch_size": 64, "n_epochs": 1, "engine": "torch"},
    },
    "evaluation": {},
    "safety": {},
    "export": {},
    "tuning": TUNING,
}


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snapshot")
    take_snapshot(EnvironmentConfig(id="CartPole-v1", backend="serial"), PROJECT, folder)
    return folder


@pytest.fixture
def path(tmp_path: Path, ready_home: Path) -> Path:
    return write(tmp_path / "pole.yaml", POLE)


def write(path: Path, document: object) -> Path:
    YAML().dump(document, path)
    return path


@pytest.mark.long
def test_a_killed_search_goes_on_as_if_it_had_not_been(
    path: Path, snapshot: Path, loomrl_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = list(TuningStudy(path, snapshot).run(2))
    assert TuningStudy(path, snapshot).trials() == undisturbed
    assert [trial.number for trial in undisturbed] == [0, 1]
    assert not list((loomrl_home / "tuning").glob("*"))  # no checkpoints are left behind

    (loomrl_home / "tuning.db").unlink()
    seeds = []

    def killed_in_the_second_trial(config, *arguments):  # type: ignore[no-untyped-def]
        seeds.append(config.seed)
        report = train_policy(config, *arguments)
        if len(seeds) == 2:
            raise KeyboardInterrupt
        return report

    with monkeypatch.context() as patch:
        patch.setattr("loomrl.training.train.train_policy", killed_in_the_second_trial)
        with pytest.raises(KeyboardInterrupt):
            list(TuningStudy(path, snapshot).run(2))
    assert seeds == [3, 3]
    assert len(TuningStudy(path, snapshot).trials()) == 1
    assert len(list((loomrl_home / "tuning").glob("*/checkpoints/*"))) == 1  # its training resumes from it
    assert [trial.number for trial in TuningStudy(path, snapshot).run(2)] == [1]
    assert TuningStudy(path, snapshot).trials() == undisturbed


@pytest.mark.long
def test_a_trial_is_what_its_command_trains(path: Path, snapshot: Path, tmp_path: Path) -> None:
    tried = TuningStudy(write(path, {**POLE, "tuning": {**TUNING, "num_seeds": 2}}), snapshot)
    (trial,) = tried.run(1)
    returns = []
    for seed in (3, 4):
        report = train_policy(tried.training(trial.settings, seed), snapshot, tmp_path / str(seed), tmp_path / "home")
        returns.append(report.final_metrics["best_validation_return"])
    assert trial.score == sum(returns) / 2
    command = tried.command(trial.settings)
    assert command.startswith("loomrl run configs/pole.yaml --set training.parameters.learning_rate=0.00")
    assert parse_overrides(command.split(" --set ")[1:]) == trial.settings


def test_settings_that_do_not_go_together_fail_their_trial_only(
    path: Path, snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks_down(config, *arguments):  # type: ignore[no-untyped-def]
        raise LoomRLError("the loss is not finite")

    with monkeypatch.context() as patch:
        patch.setattr("loomrl.training.train.train_policy", breaks_down)
        (failed,) = TuningStudy(path, snapshot).run(1)
    assert (failed.score, failed.problem) == (None, "the loss is not finite")
    (trained,) = TuningStudy(path, snapshot).run(2)
    assert best(TuningStudy(path, snapshot).trials()).number == trained.number == 1
    with pytest.raises(LoomRLError, match="none of 1 trials could be trained"):
        best([failed])


def test_the_best_is_the_highest_and_of_equals_the_first() -> None:
    trials = [Trial(number=n, settings={}, score=score) for n, score in enumerate((1.0, None, 7.0, 7.0))]
    assert best(trials).number == 2


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (None, r"pole\.yaml: tuning: missing; say what to search, for example `tuning:"),
        ({"safety.confidence": LEARNING_RATE}, "'safety.confidence' cannot be tuned: trials only train"),
        ({"training.seed": {"low": 1, "high": 2}}, "'training.seed' cannot be tuned: trials are compared by it"),
        ({"training.parameters.gamma": {"low": 0.9}}, "needs `low` and `high`, or `choices`"),
        ({"training.parameters.gamma": {"low": 0.9, "high": 0.8}}, r"low 0\.9 must be below high 0\.8"),
        ({"training.parameters.gamma": {"low": 0, "high": 0.8, "log": True}}, "needs low above 0, found 0"),
        ({"training.parameters.gamma": {"lows": 0}}, r"gamma\.lows: unknown key; did you mean 'low'\?"),
        ({"training.parameters.gama": {"low": 0.8, "high": 0.9}}, r"gama: 0\.8 is not accepted: .*mean 'gamma'"),
        (
            {"training.parameters.gamma": {"low": 0.8, "high": 7}},
            r"gamma: 7 is not accepted: .*less than or equal to 1",
        ),
    ],
)
def test_what_cannot_be_searched_is_said_before_anything_is_trained(
    path: Path, snapshot: Path, parameters: object, message: str
) -> None:
    write(path, {**POLE, "tuning": parameters and {"parameters": parameters}})
    with pytest.raises(ConfigError, match=message):
        TuningStudy(path, snapshot)


def test_a_search_without_a_snapshot_says_how_to_take_one(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dvc repro environment@pole"):
        TuningStudy(path, path.parent / "nowhere")


def test_one_search_of_a_policy_at_a_time(path: Path, snapshot: Path) -> None:
    with search._alone("pole"), pytest.raises(ConfigError, match="pole is being tuned by another process"):
        list(TuningStudy(path, snapshot).run(1))


def test_no_stage_depends_on_what_is_searched() -> None:
    stages = YAML(typ="safe").load(PROJECT / "dvc.yaml")["stages"]
    parts = [part for stage in ORDER for part in stages[stage]["params"]]
    sections = {name for part in parts for names in part.values() for name in names}
    assert {"training", "safety"} <= sections
    assert not sections & {"tuning", "monitoring"}
    code = {file for stage in ORDER for file in stage_code(stage, "ppo")}
    assert "training/loop.py" in code
    assert not [file for file in code if file.startswith(("runs/tuning", "runs/config", "monitoring"))]
