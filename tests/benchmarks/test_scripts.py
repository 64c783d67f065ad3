"""Every benchmark can be started: what it imports is there, and what its results depend on."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
KEEP_RESULTS = (BENCHMARKS, ROOT / "tests" / "soak", ROOT / "tests" / "faults")
A_PLACE = re.compile(r'"((?:src|benchmarks|tests)/[\w/.]+)"')


def test_every_script_can_be_imported() -> None:
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
    assert len(names) > 20
    script = (
        "import importlib, sys; sys.path[:0] = sys.argv[1:3]; [importlib.import_module(one) for one in sys.argv[3:]]"
    )
    command = [sys.executable, "-c", script, str(BENCHMARKS), str(BENCHMARKS.parent), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_kept_results_depend_on_is_there() -> None:
    """A file that was moved would stop a benchmark that takes hours at its first result."""
    named = {
        place for folder in KEEP_RESULTS for path in folder.rglob("*.py") for place in A_PLACE.findall(path.read_text())
    }
    assert len(named) > 40
    assert [place for place in sorted(named) if not (ROOT / place).exists()] == []
