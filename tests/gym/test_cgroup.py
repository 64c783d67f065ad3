"""Where a cgroup is looked for. That it bounds and is removed is in `test_sandbox.py`, with this machine's own."""

from pathlib import Path

import pytest

from loomrl.gym.domains.code import cgroup

VERSION_1 = """\
9:name=systemd:/
8:pids:/
4:memory:/machine/one
0::/
"""
VERSION_1_MOUNTS = """\
30 20 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
31 20 0:27 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
32 20 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
33 20 0:29 / /tmp rw - tmpfs tmpfs rw
"""
CONTAINER_MOUNTS = VERSION_1_MOUNTS.replace(" / /sys/fs/cgroup/memory", " /machine /sys/fs/cgroup/memory")


def test_version_1_has_a_folder_for_each_controller() -> None:
    expected = (Path("/sys/fs/cgroup/memory/machine/one"), Path("/sys/fs/cgroup/pids"))
    assert next(cgroup._candidates(VERSION_1, VERSION_1_MOUNTS)) == expected


def test_a_mount_may_show_a_part() -> None:
    found = next(cgroup._candidates(VERSION_1, CONTAINER_MOUNTS))
    assert found[0] == Path("/sys/fs/cgroup/memory/one")
    elsewhere = CONTAINER_MOUNTS.replace("/machine /sys", "/another /sys")
    assert next(cgroup._candidates(VERSION_1, elsewhere))[0] == Path("/sys/fs/cgroup/memory")


def test_version_2_has_one_folder_and_those_above(tmp_path: Path) -> None:
    own = tmp_path / "user.slice" / "app.slice" / "shell.scope"
    own.mkdir(parents=True)
    for folder, controllers in (
        (tmp_path, "cpu memory pids"),
        (tmp_path / "user.slice", "cpu"),
        (tmp_path / "user.slice" / "app.slice", "memory pids"),
        (own, ""),
    ):
        (folder / "cgroup.subtree_control").write_text(controllers)
    mounts = f"25 20 0:22 / {tmp_path} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
    found = list(cgroup._candidates("0::/user.slice/app.slice/shell.scope\n", mounts))
    assert found == [(tmp_path / "user.slice" / "app.slice",), (tmp_path,)]


def test_where_there_is_none_there_is_none() -> None:
    assert list(cgroup._candidates("0::/\n", "33 20 0:29 / /tmp rw - tmpfs tmpfs rw\n")) == []
    assert list(cgroup._candidates("", VERSION_1_MOUNTS)) == []


def test_all_that_bounds_is_set_as_far_as_it_is_there(tmp_path: Path) -> None:
    for name in ("memory.max", "pids.max"):
        (tmp_path / name).touch()
    cgroup._bound(tmp_path, 1 << 20, 7)
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {"memory.max": "1048576", "pids.max": "7"}


def test_what_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="gone"):
        cgroup._make((tmp_path, tmp_path / "gone"), 1 << 20, 7)
    assert list(tmp_path.iterdir()) == []
