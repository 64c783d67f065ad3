"""The data gate on real evaluation data, then on the same data corrupted in one place."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from gymnasium import spaces

from loomrl.environment.spaces import space_to_json
from loomrl.errors import ArtifactError, ConfigError, GateRefused
from loomrl.evaluation.data_gate import VALIDATION, DataValidation, require_valid, validate
from loomrl.evaluation.expectations import SPACES, bounds
from loomrl.evaluation.tables import EPISODES, TRAJECTORIES, episodes_table, read_table, steps_table, write_table
from loomrl.system.files import read_json, write_json
from loomrl.types import Episode
from tests.support.trained import Policy


@pytest.fixture
def folder(policy: Policy, tmp_path: Path) -> Path:
    """A copy of valid evaluation data."""
    return shutil.copytree(policy.evaluation, tmp_path / "evaluation")


def corrupt(folder: Path, table: str, change: Callable[[pd.DataFrame], pd.DataFrame | None]) -> DataValidation:
    """Change one table in place, then validate."""
    frame = read_table(folder / table).to_pandas()
    changed = change(frame)
    write_table(folder / table, pa.Table.from_pandas(frame if changed is None else changed, preserve_index=False))
    return validate(folder)


def failures(validation: DataValidation) -> set[tuple[str, str]]:
    return {(result.table, result.column) for result in validation.failures}


def test_good_data_pass_and_equal_data_give_equal_bytes(folder: Path) -> None:
    validation = validate(folder)
    assert validation.success
    assert validation.num_failed == 0
    assert validation.num_expectations > 40
    assert validation.to_bytes() == (folder / VALIDATION).read_bytes()
    assert {result.kind for result in validation.expectations} >= {
        "expect_column_to_exist",
        "expect_column_values_to_be_between",
        "expect_column_values_to_be_in_set",
        "expect_column_values_to_be_unique",
        "expect_column_pair_values_to_be_equal",
        "expect_column_values_to_not_be_null",
    }
    require_valid(validation, folder)


def test_reward_that_is_not_a_number(folder: Path) -> None:
    def change(frame: pd.DataFrame) -> None:
        frame.loc[3, "reward"] = np.nan

    validation = corrupt(folder, TRAJECTORIES, change)
    assert failures(validation) == {("trajectories", "reward"), ("episodes", "episode_return")}
    failed = next(result for result in validation.failures if result.column == "reward")
    assert (failed.unexpected_count, failed.statement) == (1, "values are numbers")
    with pytest.raises(GateRefused, match=r"trajectories\.reward: values are numbers: 1 of \d+ rows do not"):
        require_valid(validation, folder)


def test_infinite_reward(folder: Path) -> None:
    def change(frame: pd.DataFrame) -> None:
        frame.loc[3, "reward"] = np.inf

    assert ("trajectories", "reward") in failures(corrupt(folder, TRAJECTORIES, change))


def test_observation_outside_its_space(folder: Path) -> None:
    def change(frame: pd.DataFrame) -> None:
        frame.loc[7, "obs_2"] = 0.5  # the pole's angle ends at 0.418

    validation = corrupt(folder, TRAJECTORIES, change)
    assert failures(validation) == {("trajectories", "obs_2")}
    assert validation.failures[0].examples == ["0.5"]


def test_observation_outside_its_space_where_bounds_are_not_enforced(folder: Path) -> None:
    described = read_json(folder / SPACES)
    write_json(folder / SPACES, {**described, "enforce_observation_bounds": False})

    def outside(frame: pd.DataFrame) -> None:
        frame.loc[7, "obs_2"] = 0.5

    assert corrupt(folder, TRAJECTORIES, outside).success

    def infinite(frame: pd.DataFrame) -> None:
        frame.loc[7, "obs_2"] = np.inf

    assert failures(corrupt(folder, TRAJECTORIES, infinite)) == {("trajectories", "obs_2")}


def test_action_that_is_no_member(folder: Path) -> None:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.assign(action_0=frame["action_0"].where(frame.index != 5, 2))

    assert failures(corrupt(folder, TRAJECTORIES, change)) == {("trajectories", "action_0")}


def test_missing_row(folder: Path) -> None:
    validation = corrupt(folder, TRAJECTORIES, lambda frame: frame.drop(index=4))
    assert ("trajectories", "step") in failures(validation)
    assert ("episodes", "length") in failures(validation)


def test_missing_last_row(folder: Path) -> None:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        return frame[~((frame["episode"] == 1) & frame["terminated"])]

    assert ("trajectories", "ended") in failures(corrupt(folder, TRAJECTORIES, change))


def test_duplicated_ending(folder: Path) -> None:
    def change(frame: pd.DataFrame) -> None:
        frame.loc[2, "terminated"] = True

    validation = corrupt(folder, TRAJECTORIES, change)
    assert failures(validation) == {("trajectories", "ended")}
    assert "ends once" in validation.failures[0].statement


def test_return_that_is_not_the_sum_of_rewards(folder: Path) -> None:
    def change(frame: pd.DataFrame) -> None:
        frame.loc[0, "episode_return"] += 1.0

    assert failures(corrupt(folder, EPISODES, change)) == {("episodes", "episode_return")}


def test_repeated_seed(folder: Path) -> None:
    def change(frame: pd.DataFrame) -> None:
        frame.loc[10, "seed"] = frame.loc[11, "seed"]

    validation = corrupt(folder, EPISODES, change)
    assert failures(validation) == {("episodes", "seed")}
    assert validation.failures[0].unexpected_count == 2


def test_episode_that_never_ended(folder: Path) -> None:
    def change(frame: pd.DataFrame) -> None:
        frame.loc[10, ["terminated", "truncated"]] = False

    assert failures(corrupt(folder, EPISODES, change)) == {("episodes", "terminated_or_truncated")}


def test_missing_column(folder: Path) -> None:
    validation = corrupt(folder, TRAJECTORIES, lambda frame: frame.drop(columns=["next_obs_1"]))
    assert failures(validation) == {("trajectories", "next_obs_1")}
    assert validation.failures[0].observed == "missing"


def test_torn_file(folder: Path) -> None:
    (folder / EPISODES).write_bytes((folder / EPISODES).read_bytes()[:100])
    with pytest.raises(ArtifactError, match=r"episodes\.parquet cannot be read as Parquet"):
        validate(folder)


def wide_episode(seed: int, outside: bool = False) -> Episode:
    """Three steps with 96 components, too many for one expectation each."""
    obs = np.zeros((4, 12, 8), dtype=np.float32)
    obs[2, 3, 4] = 2.0 if outside else 1.0
    reward = np.ones(3)
    return Episode(seed, obs[:3], np.zeros((3, 2), np.float32), reward, obs[1:], terminated=True, truncated=False)


@pytest.mark.parametrize("outside", [False, True])
def test_wide_observations_are_checked_per_row(tmp_path: Path, outside: bool) -> None:
    episodes = [wide_episode(1), wide_episode(2, outside)]
    observation = spaces.Box(0.0, 1.0, (12, 8), np.float32)
    described = {"observation": space_to_json(observation), "action": space_to_json(spaces.Box(-1.0, 1.0, (2,)))}
    write_json(tmp_path / SPACES, {**described, "enforce_observation_bounds": True})
    write_table(tmp_path / EPISODES, episodes_table(episodes, [None, None]))
    write_table(tmp_path / TRAJECTORIES, steps_table(episodes))
    validation = validate(tmp_path)
    assert failures(validation) == ({("trajectories", "obs"), ("trajectories", "next_obs")} if outside else set())
    assert validation.num_expectations < 40


def test_discrete_observations(tmp_path: Path) -> None:
    steps = np.array([3, 4, 5])
    episode = Episode(1, steps, np.array([0, 1, 1]), np.ones(3), steps + 1, terminated=False, truncated=True)
    described = {"observation": space_to_json(spaces.Discrete(7)), "action": space_to_json(spaces.Discrete(2))}
    write_json(tmp_path / SPACES, {**described, "enforce_observation_bounds": True})
    write_table(tmp_path / EPISODES, episodes_table([episode], [True]))
    write_table(tmp_path / TRAJECTORIES, steps_table([episode]))
    assert validate(tmp_path).success
    write_json(
        tmp_path / SPACES,
        {**described, "observation": space_to_json(spaces.Discrete(6)), "enforce_observation_bounds": True},
    )
    assert failures(validate(tmp_path)) == {("trajectories", "next_obs_0")}


def test_bounds_of_choices_and_switches() -> None:
    assert [end.tolist() for end in bounds(spaces.MultiDiscrete([[2, 3]], start=[[-1, 4]]))] == [[-1, 4], [0, 6]]
    assert [end.tolist() for end in bounds(spaces.MultiBinary([2, 1]))] == [[0, 0], [1, 1]]


def test_bounds_of_other_spaces_are_refused() -> None:
    with pytest.raises(ConfigError, match="supported: Box, Discrete"):
        bounds(spaces.Text(3))
