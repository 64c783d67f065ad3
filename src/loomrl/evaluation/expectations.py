"""What evaluation data must look like: expectations over the two tables, derived from the spaces.

Structure that spans rows (contiguous steps, one ending per episode, returns that are the sum of rewards) is computed
into helper columns first, so that each rule is one expectation with its own count of failures.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loomrl.errors import ConfigError
from loomrl.evaluation.tables import EPISODES, TRAJECTORIES, read_table
from loomrl.system.files import read_json

SPACES = "spaces.json"

_FLOAT_MAX = float(np.finfo(np.float64).max)
_RETURN_TOLERANCE = 1e-6  # relative: a return may have been summed in another order
_MANY_COLUMNS = 64  # wider spaces are checked per row instead of per column


@dataclass(frozen=True)
class Expected:
    """One expectation: a Great Expectations class by name, its arguments, and the rule in words."""

    kind: str
    column: str  # as a page shows it; the one that is examined is in `arguments`
    statement: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Tables:
    """The two tables as pandas data frames, helper columns added, and the spaces they must lie in."""

    episodes: Any
    steps: Any
    observation: Any  # a Gymnasium space, without its bounds where these are not enforced
    action: Any  # a Gymnasium space
    missing: dict[str, list[str]] = field(default_factory=dict)  # table -> columns that are absent


EPISODE_COLUMNS = ("seed", "episode_return", "length", "success", "terminated", "truncated")
STEP_COLUMNS = ("episode", "step", "seed", "reward", "terminated", "truncated")


def read_tables(folder: Path) -> Tables:
    """Read an evaluation folder and add the helper columns.

    Raises:
        ArtifactError: when a file is missing or torn.
        ConfigError: for a space that is not of numbers.
    """
    from loomrl.environment.spaces import space_from_json

    described = read_json(folder / SPACES)
    observation, action = space_from_json(described["observation"]), space_from_json(described["action"])
    if not described["enforce_observation_bounds"]:
        observation = _unbounded(observation)
    episodes = read_table(folder / EPISODES).to_pandas()
    steps = read_table(folder / TRAJECTORIES).to_pandas()
    flat = (("obs", observation), ("action", action), ("next_obs", observation))
    needed = [*STEP_COLUMNS, *(column for name, space in flat for column in _columns(name, space))]
    missing = {
        "episodes": [column for column in EPISODE_COLUMNS if column not in episodes],
        "trajectories": [column for column in needed if column not in steps],
    }
    if not any(missing.values()):
        _add_structure(episodes, steps)
        for name, space in flat:
            _add_outside(steps, name, space)
    return Tables(episodes, steps, observation, action, missing)


def expect_episodes(tables: Tables) -> list[Expected]:
    """Columns, unique seeds, finite returns, lengths and returns equal to those of the steps; the columns alone where
    either table lacks one."""
    columns = [_exists(column) for column in EPISODE_COLUMNS]
    if any(tables.missing.values()):
        return columns
    return [
        *columns,
        Expected("ExpectColumnValuesToBeUnique", "seed", "seeds are unique", {"column": "seed"}),
        *_finite("episode_return"),
        _between("length", "episodes have at least one step", min_value=1),
        _equal("terminated_or_truncated", "_true", "every episode ended"),
        _equal("length", "_num_steps", "lengths equal the number of recorded steps"),
        _between(
            "episode_return",
            "returns equal the sum of recorded rewards",
            column="_return_error",
            min_value=0.0,
            max_value=_RETURN_TOLERANCE,
        ),
        _all_present("_return_error", "episode_return", "every recorded sum of rewards is a number"),
    ]


def expect_steps(tables: Tables) -> list[Expected]:
    """Columns, finite values inside the spaces, contiguous steps, exactly one ending per episode at its last row; the
    columns alone where either table lacks one.

    Raises:
        ConfigError: for a space that is not of numbers.
    """
    names = [*_columns("obs", tables.observation), *_columns("action", tables.action)]
    names += _columns("next_obs", tables.observation)
    columns = [_exists(column) for column in STEP_COLUMNS]
    columns += [_exists(column) for column in names] if len(names) <= _MANY_COLUMNS else []
    if any(tables.missing.values()):
        return columns + [_exists(column) for column in tables.missing["trajectories"] if len(names) > _MANY_COLUMNS]
    return [
        *columns,
        *_finite("reward"),
        *_within("obs", tables.observation, "observations"),
        *_within("action", tables.action, "actions"),
        *_within("next_obs", tables.observation, "next observations"),
        _equal("step", "_expected_step", "steps count 0, 1, 2, ... within each episode"),
        _equal("ended", "_last", "each episode ends once, at its last row"),
        _equal("seed", "_episode_seed", "an episode has one seed, that of the episode table"),
    ]


def _add_structure(episodes: Any, steps: Any) -> None:
    """Helper columns; those of episodes whose steps are not kept repeat the episode table's own values."""
    steps["_expected_step"] = steps.groupby("episode").cumcount()
    steps["ended"] = steps["terminated"].astype(bool) | steps["truncated"].astype(bool)
    steps["_last"] = ~steps.duplicated("episode", keep="last")
    steps["_episode_seed"] = steps["episode"].map(episodes["seed"]).fillna(-1).astype("int64")
    episodes["terminated_or_truncated"] = episodes["terminated"].astype(bool) | episodes["truncated"].astype(bool)
    episodes["_true"] = True
    by_seed = steps.groupby("seed")["reward"]
    kept = episodes.index.isin(steps["episode"])
    counted = episodes["seed"].map(by_seed.size()).where(kept, episodes["length"])
    episodes["_num_steps"] = counted.fillna(0).astype("int64")
    summed = episodes["seed"].map(by_seed.agg(lambda rewards: rewards.sum(skipna=False)))
    error = (summed - episodes["episode_return"]).abs() / episodes["episode_return"].abs().clip(lower=1.0)
    episodes["_return_error"] = error.where(kept, 0.0)


def _unbounded(space: Any) -> Any:
    """The same columns without bounds: some environments leave the space they declare."""
    from gymnasium import spaces

    return spaces.Box(-np.inf, np.inf, space.shape, np.float64) if isinstance(space, spaces.Box) else space


def _add_outside(steps: Any, name: str, space: Any) -> None:
    """`_{name}_outside`: how many components of a row are not finite or not within the space."""
    values = steps[_columns(name, space)].to_numpy(dtype=np.float64)
    low, high = bounds(space)
    steps[f"_{name}_outside"] = np.sum(~((values >= low) & (values <= high) & np.isfinite(values)), axis=1)


def bounds(space: Any) -> tuple[Any, Any]:
    """Flattened lower and upper bounds of a space of numbers, (D,) each, as float64.

    Raises:
        ConfigError: for other spaces.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        return space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
    if isinstance(space, spaces.Discrete):
        start = float(space.start)
        return np.array([start]), np.array([start + float(space.n) - 1.0])
    if isinstance(space, spaces.MultiDiscrete):
        starts = space.start.astype(np.float64).ravel()
        return starts, starts + space.nvec.ravel() - 1.0
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape, dtype=np.int64))
        return np.zeros(size), np.ones(size)
    raise ConfigError(
        f"evaluation data of {space} cannot be validated; supported: Box, Discrete, MultiDiscrete, MultiBinary; wrap "
        "the environment"
    )


def _columns(name: str, space: Any) -> list[str]:
    return [f"{name}_{index}" for index in range(int(np.prod(space.shape, dtype=np.int64)))]


def _within(name: str, space: Any, words: str) -> list[Expected]:
    columns = _columns(name, space)
    if len(columns) > _MANY_COLUMNS:
        counts = {"column": f"_{name}_outside", "value_set": [0]}
        statement = f"all components of {words} are finite and within the space"
        return [Expected("ExpectColumnValuesToBeInSet", name, statement, counts)]
    low, high = bounds(space)
    whole = np.issubdtype(space.dtype, np.integer)
    expected = []
    for index, column in enumerate(columns):
        smallest, largest = float(np.clip(low[index], -_FLOAT_MAX, None)), float(np.clip(high[index], None, _FLOAT_MAX))
        statement = f"{words} are {_range(smallest, largest)}"
        expected.append(_all_present(column, column, f"{words} are numbers"))
        expected.append(_between(column, statement, min_value=smallest, max_value=largest))
        if whole and largest - smallest < 1_000:
            members = list(range(int(smallest), int(largest) + 1))
            in_set = {"column": column, "value_set": members}
            expected.append(Expected("ExpectColumnValuesToBeInSet", column, f"{words} are members", in_set))
    return expected


def _range(low: float, high: float) -> str:
    if low == -_FLOAT_MAX and high == _FLOAT_MAX:
        return "finite"
    return f"finite and within [{low:g}, {high:g}]"


def _exists(column: str) -> Expected:
    return Expected("ExpectColumnToExist", column, "the column exists", {"column": column})


def _all_present(column: str, shown: str, statement: str) -> Expected:
    """NaN counts as null in pandas."""
    return Expected("ExpectColumnValuesToNotBeNull", shown, statement, {"column": column})


def _between(shown: str, statement: str, **arguments: Any) -> Expected:
    """Of the column that is shown, where no other is named."""
    return Expected("ExpectColumnValuesToBeBetween", shown, statement, {"column": shown, **arguments})


def _finite(column: str) -> list[Expected]:
    finite = _between(column, "values are finite", min_value=-_FLOAT_MAX, max_value=_FLOAT_MAX)
    return [_all_present(column, column, "values are numbers"), finite]


def _equal(first: str, second: str, statement: str) -> Expected:
    arguments = {"column_A": first, "column_B": second, "ignore_row_if": "neither"}
    return Expected("ExpectColumnPairValuesToBeEqual", first, statement, arguments)
