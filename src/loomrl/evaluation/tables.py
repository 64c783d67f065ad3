"""Episodes as Parquet: one row per episode, one row per step. Equal episodes give equal bytes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from loomrl.errors import ArtifactError
from loomrl.system.security.encryption import read_private, write_private
from loomrl.types import Episode

EPISODES = "episodes.parquet"
TRAJECTORIES = "trajectories.parquet"


def episodes_table(episodes: Sequence[Episode], successes: Sequence[bool | None]) -> pa.Table:
    """A table with a row for each episode: seed, episode_return, length, success (null where unknown), terminated,
    truncated; episode_cost where costs are told."""
    costs = [episode.episode_cost for episode in episodes]
    return pa.table(
        {
            "seed": pa.array([episode.seed for episode in episodes], pa.int64()),
            "episode_return": pa.array([episode.episode_return for episode in episodes], pa.float64()),
            "length": pa.array([episode.length for episode in episodes], pa.int64()),
            "success": pa.array(list(successes), pa.bool_()),
            "terminated": pa.array([episode.terminated for episode in episodes], pa.bool_()),
            "truncated": pa.array([episode.truncated for episode in episodes], pa.bool_()),
            **({} if costs.count(None) == len(costs) else {"episode_cost": pa.array(costs, pa.float64())}),
        }
    )


def steps_table(episodes: Sequence[Episode]) -> pa.Table:
    """A table with a row for each step: episode and step (both from 0), seed, obs_i, action_i, reward, terminated,
    truncated, next_obs_i, and cost where costs are told; arrays are flattened."""
    told = [episode.cost for episode in episodes]
    costs = [np.zeros(episode.length) if cost is None else cost for episode, cost in zip(episodes, told, strict=True)]
    lengths = [episode.length for episode in episodes]
    columns: dict[str, NDArray[np.generic]] = {
        "episode": np.repeat(np.arange(len(episodes)), lengths),
        "step": np.concatenate([np.arange(length) for length in lengths]),
        "seed": np.repeat([episode.seed for episode in episodes], lengths),
        **_flat_columns("obs", [episode.obs for episode in episodes]),
        **_flat_columns("action", [episode.action for episode in episodes]),
        "reward": np.concatenate([np.asarray(episode.reward, dtype=np.float64) for episode in episodes]),
        "terminated": np.concatenate([_ending(episode, episode.terminated) for episode in episodes]),
        "truncated": np.concatenate([_ending(episode, episode.truncated) for episode in episodes]),
        **_flat_columns("next_obs", [episode.next_obs for episode in episodes]),
        **({} if all(cost is None for cost in told) else {"cost": np.concatenate(costs)}),
    }
    return pa.table(columns)


def write_table(path: Path, table: pa.Table) -> None:
    """Write Parquet atomically with fixed settings and no metadata that varies, encrypted where keys are configured.

    Raises:
        ArtifactError: when it cannot be written; a file that was there is as it was.
        ConfigError: when the configured keys cannot be read; nothing is written.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", version="2.6", store_schema=False)
    write_private(path, sink.getvalue().to_pybytes())


def read_table(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read Parquet, or some of its columns.

    Raises:
        ArtifactError: when the file is missing or torn, or lacks one of the columns.
        ConfigError: when it is encrypted, and its key is not configured.
    """
    wanted = None if columns is None else list(columns)
    try:
        # By this thread alone: one of Arrow's that still holds the bytes when Python ends takes the process with it.
        file = pq.ParquetFile(pa.BufferReader(read_private(path)), pre_buffer=False)
        if absent := set(wanted or ()) - set(file.schema_arrow.names):
            raise ArtifactError(f"{path} has no column {min(absent)!r}; run the evaluation stage again")
        return file.read(columns=wanted, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise ArtifactError(f"{path} cannot be read as Parquet: {error}; run the evaluation stage again") from error


def stack_columns(
    table: pa.Table, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]
) -> NDArray[np.generic]:
    """The flattened columns `name_0, name_1, ...` back as (N, *shape) of `dtype`.

    Raises:
        ArtifactError: when a column is missing.
    """
    count = int(np.prod(shape, dtype=np.int64))
    names = [f"{name}_{index}" for index in range(count)]
    if absent := [column for column in names if column not in table.column_names]:
        raise ArtifactError(f"the trajectories have no column {absent[0]!r}; run the evaluation stage again")
    stacked = np.column_stack([table.column(column).to_numpy() for column in names])
    return stacked.astype(dtype).reshape(len(table), *shape)


def _flat_columns(name: str, arrays: Sequence[NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    flat = np.concatenate([np.asarray(array).reshape(len(array), -1) for array in arrays])
    return {f"{name}_{index}": np.ascontiguousarray(flat[:, index]) for index in range(flat.shape[1])}


def _ending(episode: Episode, flag: bool) -> NDArray[np.bool_]:
    marks = np.zeros(episode.length, dtype=np.bool_)
    marks[-1] = flag
    return marks
