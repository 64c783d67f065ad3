"""Episodes as Parquet and back."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from loomrl.errors import ArtifactError
from loomrl.evaluation.tables import episodes_table, read_table, stack_columns, steps_table, write_table
from loomrl.types import Episode


def episode(seed: int, length: int) -> Episode:
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(length + 1, 2, 3)).astype(np.float32)
    action = rng.normal(size=(length, 2))
    return Episode(
        seed, obs[:-1], action, rng.normal(size=length), obs[1:], terminated=seed % 2 == 0, truncated=seed % 2 == 1
    )


def test_steps_come_back_as_they_were(tmp_path: Path) -> None:
    episodes = [episode(4, 5), episode(7, 1)]
    write_table(tmp_path / "steps.parquet", steps_table(episodes))
    table = read_table(tmp_path / "steps.parquet")
    assert table.column_names[:3] == ["episode", "step", "seed"]
    assert table["step"].to_pylist() == [0, 1, 2, 3, 4, 0]
    assert table["terminated"].to_pylist() == [False] * 4 + [True, False]
    assert table["truncated"].to_pylist() == [False] * 5 + [True]
    for name in ("obs", "next_obs"):
        stacked = stack_columns(table, name, (2, 3), np.dtype(np.float32))
        assert np.array_equal(stacked, np.concatenate([getattr(each, name) for each in episodes]))
    with pytest.raises(ArtifactError, match="no column 'obs_6'"):
        stack_columns(table, "obs", (7,), np.dtype(np.float32))


def test_equal_episodes_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("first", "second"):
        write_table(tmp_path / name, steps_table([episode(1, 50)]))
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()


def test_success_may_be_unknown() -> None:
    table = episodes_table([episode(1, 2), episode(2, 3)], [None, True])
    assert table["success"].to_pylist() == [None, True]
    assert table["length"].to_pylist() == [2, 3]


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_table(tmp_path / "t.parquet", pa.table({"seed": [1]}))
    with pytest.raises(ArtifactError, match=r"t\.parquet has no column 'speed'"):
        read_table(tmp_path / "t.parquet", ["seed", "speed"])


def test_reading_leaves_no_thread_that_could_outlive_python(tmp_path: Path) -> None:
    write_table(tmp_path / "t.parquet", pa.table({f"c{index}": list(range(5_000)) for index in range(20)}))
    code = (
        "import os, sys; from pathlib import Path; from loomrl.evaluation.tables import read_table;"
        "before = len(os.listdir('/proc/self/task')); table = read_table(Path(sys.argv[1]));"
        "print(table.num_rows, len(os.listdir('/proc/self/task')) - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "t.parquet")], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["5000", "0"], done.stderr
