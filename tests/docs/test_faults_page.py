"""`docs/faults.md` names every fault that was to be proved, and only tests that there are."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (?P<fault>[^|]+) \| (?P<outcome>[^|]+) \| (?P<tests>`[^|]+`) \|$", re.MULTILINE)
ROWS = [match.groupdict() for match in ROW.finditer((ROOT / "docs" / "faults.md").read_text())]

FAULTS = """
NaN; infinity; 1e38; wrong shape; wrong dtype; empty batch; shape that disagrees with the data; lying binary length;
gzip bomb; oversized body; unknown version; duplicate reward; late reward; unknown-id reward; NaN reward; missing token;
wrong token; line breaks in an agent id; no space left; short write; locked SQLite; torn tail; edited log;
deleted records; reordered records; truncated log; kill between write and answer; bit flip; extra file; wrong key;
replayed signature; pickle payload; swap during swap; crash in the middle of a promotion; no metrics;
a noisy A/A split must not roll back; sticky split per agent; SIGTERM with requests in flight; override during a swap;
override surviving a restart; reload that interrupts service; success reported without promoting;
a new revision during the analysis; stuck while promoting; a server that answers before it is ready
"""


def test_every_fault_has_its_row() -> None:
    wanted = {" ".join(fault.split()) for fault in FAULTS.split(";")}
    faults = [row["fault"] for row in ROWS]
    assert wanted <= set(faults)
    assert len(set(faults)) == len(faults)


@pytest.mark.parametrize("row", ROWS, ids=[row["fault"] for row in ROWS])
def test_what_a_row_names_is_there(row: dict[str, str]) -> None:
    for named in re.findall(r"`([^`]+)`", row["tests"]):
        path, _, name = named.partition("::")
        functions = [
            node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)
        ]
        assert name in functions, f"{path} has no test {name}"
