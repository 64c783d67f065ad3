"""Pages that say which faults were proved to do no harm name each that was to be, and only tests that there are."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(
    r"^\| (?P<fault>[^|]+) \| (?P<outcome>[^|]+) \| (?P<tests>`[^|]+`(?: \(long[^)|]*\))?) \|$", re.MULTILINE
)

FAULTS = """
NaN; infinity; 1e38; wrong shape; wrong dtype; empty batch; shape that disagrees with the data; lying binary length;
gzip bomb; oversized body; unknown version; duplicate reward; late reward; unknown-id reward; NaN reward; missing token;
wrong token; line breaks in an agent id; no space left; short write; locked SQLite; torn tail; edited log;
deleted records; reordered records; truncated log; kill between write and answer; bit flip; extra file; wrong key;
replayed signature; pickle payload; swap during swap; crash in the middle of a promotion; no metrics;
a noisy A/A split must not roll back; sticky split per agent; SIGTERM with requests in flight; override during a swap;
override surviving a restart; reload that interrupts service; success reported without promoting;
a new revision during the analysis; stuck while promoting; a server that answers before it is ready;
a clock that jumps, ahead or behind; clocks of hosts that differ; a first command killed
"""

REFERENCE_DEFECTS = """
a restart loses queue and registration; environments exit when the server is gone for 2 s; NaN; an oversized group;
a silent environment with a minimum; repeated posts; no acknowledgement; a post before the registration;
a batch after a reset; status of an unknown environment; status with nobody connected; no authentication;
any origin is reflected; 0.0.0.0 by default; a gzip bomb; no heartbeat; an endless queue
"""
CLUSTER = """
a host killed with -9; a learner killed with -9; the head's host killed with -9; a cut link; a hung environment;
a learner out of memory; a full object store; a learner that produces NaN; an address where nobody answers;
an address where something else answers; a token that is not the cluster's; another version of Ray or Python;
other software on a host
"""
FOOTHOLDS = ("a web page", "an agent", "an operator", "MLflow", "the database", "the disk", "the machine", "a plug-in")
PAGES = {"faults.md": FAULTS, "trajectory-api.md": REFERENCE_DEFECTS, "scaling.md": CLUSTER, "security.md": ""}
ROWS = {name: [row.groupdict() for row in ROW.finditer((ROOT / "docs" / name).read_text())] for name in PAGES}


@pytest.mark.parametrize("page", PAGES)
def test_every_fault_has_its_row(page: str) -> None:
    wanted = {" ".join(fault.split()) for fault in PAGES[page].split(";")}
    faults = [row["fault"] for row in ROWS[page]]
    assert wanted - {""} <= set(faults)
    assert len(set(faults)) == len(faults)


@pytest.mark.parametrize("foothold", FOOTHOLDS)
def test_every_foothold_has_a_row(foothold: str) -> None:
    assert any(row["fault"].startswith(foothold) for row in ROWS["security.md"])


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=f"{page}: {row['fault']}") for page, rows in ROWS.items() for row in rows]
)
def test_what_a_row_names_is_there(row: dict[str, str]) -> None:
    for named in re.findall(r"`([^`]+)`", row["tests"]):
        path, _, name = named.partition("::")
        functions = [
            node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)
        ]
        assert name in functions, f"{path} has no test {name}"


@pytest.mark.parametrize("row", [pytest.param(row, id=row["fault"]) for row in ROWS["faults.md"]])
def test_what_runs_every_night_alone_is_marked(row: dict[str, str]) -> None:
    for named, shown in re.findall(r"`([^`]+)`( \([^)]+\))?", row["tests"]):
        assert shown == _mark(*named.split("::")), named


def _mark(path: str, name: str) -> str:
    """What the page must say of a test: whether all or some of its cases are long."""
    body = ast.parse((ROOT / path).read_text()).body
    marks = [
        ast.unparse(mark)
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name == name
        for mark in node.decorator_list
    ] + [
        ast.unparse(node.value)
        for node in body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    if "pytest.mark.long" in marks:
        return " (long)"
    return " (long in part)" if any("pytest.mark.long" in mark for mark in marks) else ""
