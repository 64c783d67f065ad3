"""Every benchmark can be started: what it imports is there."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_every_script_can_be_imported() -> None:
    names = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
    assert len(names) > 20
    script = (
        "import importlib, sys; sys.path[:0] = sys.argv[1:3]; [importlib.import_module(one) for one in sys.argv[3:]]"
    )
    command = [sys.executable, "-c", script, str(BENCHMARKS), str(BENCHMARKS.parent), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
