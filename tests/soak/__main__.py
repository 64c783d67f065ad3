"""Long checks of what must never happen: `make soak`, or `python -m tests.soak swaps bad_versions`.

Each check is a module of this folder with `run(folder) -> dict`: it works in an empty folder with a LOOMRL_HOME of its
own, returns its counts and raises AssertionError when anything was wrong. What it returns becomes its entry in
`benchmarks/results/soak.json`; the other entries stay. `test_soak.py` runs the same functions with small numbers.
"""

import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from loomrl.system.files import write_atomic

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "soak.json"
CHECKS = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith(("_", "test_")))


def main(names: list[str]) -> None:
    """Run the checks named, or all, one after the other."""
    for name in names or CHECKS:
        check = importlib.import_module(f"tests.soak.{name}")
        with tempfile.TemporaryDirectory(prefix="loomrl-soak-") as folder:
            os.environ["LOOMRL_HOME"] = str(Path(folder) / "home")
            started = time.monotonic()
            found = check.run(Path(folder))
        _keep(name, {**found, "seconds": round(time.monotonic() - started)})


def _keep(name: str, found: dict[str, object]) -> None:
    kept = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    kept[name] = found
    write_atomic(RESULTS, json.dumps(kept, indent=1, sort_keys=True).encode() + b"\n")
    print(f"{name}: {json.dumps(found, sort_keys=True)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
