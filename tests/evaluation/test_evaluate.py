"""A real policy in a real environment: the report, its files, its determinism, and refusals."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from loomrl.environment.collecting.episode_log import succeeded
from loomrl.environment.config import EnvironmentConfig
from loomrl.errors import ArtifactError, GateRefused
from loomrl.evaluation import evaluate
from loomrl.evaluation.config import EvaluationConfig
from loomrl.evaluation.data_gate import VALIDATION, DataValidation
from loomrl.evaluation.evaluate import evaluate_policy, evaluation_digest
from loomrl.evaluation.picture import draw_returns
from loomrl.evaluation.tables import EPISODES, TRAJECTORIES, read_table
from loomrl.statistics.intervals import clopper_pearson, interquartile_mean
from loomrl.system.files import sha256_file, sums
from loomrl.training.config import TrainingConfig
from loomrl.types import Episode, EvaluationReport, Interval
from tests.support.trained import EVALUATION, Policy, train
from tests.support.trained import evaluate as evaluated

PROGRAM = """
import sys
from pathlib import Path
from loomrl.evaluation.config import EvaluationConfig
from loomrl.evaluation.evaluate import evaluate_policy
config = EvaluationConfig.model_validate_json(sys.argv[1])
evaluate_policy(config, *map(Path, sys.argv[2:]))
"""


def test_report_says_what_the_episodes_say(policy: Policy) -> None:
    report = EvaluationReport.read(policy.evaluation / "evaluation.json")
    episodes = read_table(policy.evaluation / EPISODES)
    returns = episodes["episode_return"].to_numpy()
    assert report.seeds == episodes["seed"].to_pylist() == list(range(1_000_000, 1_000_020))
    assert report.policy_digest == sha256_file(policy.training / "policy.safetensors")
    assert report.mean_return.estimate == pytest.approx(returns.mean())
    assert report.interquartile_mean_return.estimate == pytest.approx(float(interquartile_mean(returns)))
    assert report.mean_return.low < report.mean_return.estimate < report.mean_return.high
    assert (report.min_length, report.max_length) == (returns.min(), returns.max())  # one reward a step
    assert report.reward_threshold == 475
    assert report.success_rate == clopper_pearson(int(np.sum(returns >= 475)), 20, 0.95)
    assert report.data_valid
    assert (report.replay, report.replay_missing_because) == (None, "evaluation.render is false")
    assert len(set(read_table(policy.evaluation / TRAJECTORIES)["episode"].to_pylist())) == 5


@pytest.mark.long
def test_another_process_writes_equal_bytes_whatever_the_number_of_environments(policy: Policy, tmp_path: Path) -> None:
    config = EvaluationConfig(num_episodes=12, trajectory_episodes=4)
    evaluate_policy(config, policy.environment, policy.training, tmp_path / "first")
    other = config.model_copy(update={"num_envs": 7}).model_dump_json()
    folders = [str(policy.environment), str(policy.training), str(tmp_path / "second")]
    subprocess.run([sys.executable, "-c", PROGRAM, other, *folders], check=True, capture_output=True)
    written = sums(tmp_path / "first")
    assert set(written) == {
        "data_validation.json",
        "episode.gif",
        "episodes.parquet",
        "evaluation.json",
        "returns.png",
        "spaces.json",
        "trajectories.parquet",
    }
    assert sums(tmp_path / "second") == written
    with Image.open(tmp_path / "first" / "episode.gif") as replay:
        assert 2 <= replay.n_frames <= 125
        assert replay.size == (320, 213)
    assert (tmp_path / "first" / "episode.gif").stat().st_size < 1_500_000
    with Image.open(tmp_path / "first" / "returns.png") as picture:
        assert picture.size == (960, 600)
        assert "Software" not in picture.info


def test_the_digest_is_about_what_was_measured_not_about_pixels(policy: Policy, tmp_path: Path) -> None:
    shutil.copytree(policy.evaluation, tmp_path / "drawn")
    drawn = tmp_path / "drawn"
    report = EvaluationReport.read(drawn / "evaluation.json")
    report.model_copy(update={"replay": "episode.gif", "replay_missing_because": None}).write(drawn / "evaluation.json")
    (drawn / "episode.gif").write_bytes(b"pixels of another machine")
    assert evaluation_digest(drawn) == evaluation_digest(policy.evaluation)
    report.model_copy(update={"max_length": 1}).write(drawn / "evaluation.json")
    assert evaluation_digest(drawn) != evaluation_digest(policy.evaluation)
    report.write(drawn / "evaluation.json")
    (drawn / "episodes.parquet").write_bytes(b"other episodes")
    assert evaluation_digest(drawn) != evaluation_digest(policy.evaluation)


def test_refused_data_are_written_first(policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = evaluate.write_table

    def write_corrupted(path: Path, table: pa.Table) -> None:
        if path.name == TRAJECTORIES:
            reward = table["reward"].to_numpy().copy()
            reward[9] = np.nan
            table = table.set_column(table.column_names.index("reward"), "reward", pa.array(reward))
        write(path, table)

    monkeypatch.setattr(evaluate, "write_table", write_corrupted)
    with pytest.raises(GateRefused, match=r"trajectories\.reward"):
        evaluate_policy(EVALUATION, policy.environment, policy.training, tmp_path)
    assert EvaluationReport.read(tmp_path / "evaluation.json").data_valid is False
    assert DataValidation.read(tmp_path / VALIDATION).num_failed == 2
    assert (tmp_path / "returns.png").stat().st_size > 1_000


def test_missing_policy_is_named(policy: Policy, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"policy\.json"):
        evaluate_policy(EVALUATION, policy.environment, tmp_path / "nothing", tmp_path / "out")


TOLL = '''
"""A road with a toll: to go on earns 1 and costs 0.25 at every other step."""

import numpy as np
from gymnasium import spaces

from loomrl.envs import BaseEnvironment


class Toll(BaseEnvironment):
    observation_space = spaces.Box(0.0, 10.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self):
        self.steps = 0
        return [0.0]

    def step(self, action):
        self.steps += 1
        return [self.steps], 1.0, self.steps == 8, {"cost": 0.25} if self.steps % 2 else {}
'''


def test_costs_are_reported_beside_returns(tmp_path: Path) -> None:
    (tmp_path / "toll.py").write_text(TOLL)
    training = TrainingConfig(total_env_steps=64, parameters={"num_envs": 2, "rollout_length": 32, "batch_size": 64})
    toll = EnvironmentConfig(id="toll", entry_point="toll:Toll", path=tmp_path)
    folders = evaluated(train(tmp_path / "policy", toll, training))
    report = EvaluationReport.read(folders.evaluation / "evaluation.json")
    assert report.mean_cost is not None
    assert (report.mean_cost.estimate, report.mean_return.estimate) == (1.0, 8.0)
    assert set(read_table(folders.evaluation / EPISODES)["episode_cost"].to_pylist()) == {1.0}
    steps = read_table(folders.evaluation / TRAJECTORIES)
    assert steps["cost"].to_pylist()[:8] == [0.25, 0.0] * 4


def test_where_no_costs_are_told_none_are_reported(policy: Policy) -> None:
    assert EvaluationReport.read(policy.evaluation / "evaluation.json").mean_cost is None
    assert "episode_cost" not in read_table(policy.evaluation / EPISODES).column_names
    assert "cost" not in read_table(policy.evaluation / TRAJECTORIES).column_names


def an_episode(total: float, success: bool | None) -> Episode:
    zeros = np.zeros((1, 1))
    return Episode(0, zeros, zeros, np.array([total]), zeros, terminated=True, truncated=False, success=success)


@pytest.mark.parametrize(
    ("success", "configured", "threshold", "expected"),
    [
        (None, None, None, None),
        (None, None, 10.0, True),
        (None, None, 11.0, False),
        (False, None, 10.0, False),  # the environment's own signal beats its reward threshold
        (False, 5.0, 5.0, True),  # what the config asks for beats both
    ],
)
def test_success(
    success: bool | None, configured: float | None, threshold: float | None, expected: bool | None
) -> None:
    assert succeeded(success, 10.0, configured, threshold) is expected


@pytest.mark.parametrize("returns", [[500.0] * 4, [-3.5, 0.0, 1e6], [0.0]])
def test_picture_of_any_distribution_is_deterministic(tmp_path: Path, returns: list[float]) -> None:
    interval = Interval(estimate=returns[0], low=returns[0], high=returns[0] + 1, confidence=0.95, method="")
    lengths = np.full(len(returns), 7)
    for name in ("first.png", "second.png"):
        draw_returns(tmp_path / name, np.array(returns), lengths, None if len(returns) == 3 else 475.0, interval)
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "second.png").read_bytes()
