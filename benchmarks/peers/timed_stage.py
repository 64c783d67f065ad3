"""One stage of the pipeline as `python -m loomrl.runs.stages` runs it, with a clock on what every training loop must
do.

    .venv/bin/python benchmarks/peers/timed_stage.py NAME POLICY STARTED_AT

Writes `seconds.json` into the working folder: the seconds until the loop is made (interpreter, imports, environments,
networks: every trainer has them), and those spent in collecting, updating and validating. All else of the process is
what the pipeline adds: segments, checkpoints, curves and their picture, events, manifests.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loomrl.runs.stages.__main__ import ONE_THREAD, main

STARTED_AT = float(sys.argv[3])
SECONDS: dict[str, float] = {"start": 0.0, "collect": 0.0, "update": 0.0, "validate": 0.0}


def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """The same call, its seconds added up."""

    def measured(*arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        result = call(*arguments, **named)
        SECONDS[name] += time.perf_counter() - started
        return result

    return measured


def watch_loop() -> None:
    """Every training loop from here on is timed."""
    from loomrl.training.loop import TrainingLoop

    make = TrainingLoop.__init__

    def watched(loop: TrainingLoop, algorithm: Any, *arguments: Any, **named: Any) -> None:
        SECONDS["start"] = time.time() - STARTED_AT
        make(loop, algorithm, *arguments, **named)
        make_collector = algorithm.collector

        def collector(*given: Any) -> Any:
            made = make_collector(*given)
            made.collect = timed("collect", made.collect)
            return made

        algorithm.collector = collector
        algorithm.update = timed("update", algorithm.update)
        if loop.validation is not None:
            loop.validation.play = timed("validate", loop.validation.play)  # type: ignore[method-assign]

    TrainingLoop.__init__ = watched  # type: ignore[method-assign]


if __name__ == "__main__":
    os.environ |= ONE_THREAD  # as `main` does, before NumPy is imported
    if sys.argv[1] == "training":
        watch_loop()
    code = main(sys.argv[1:3])
    Path("seconds.json").write_text(json.dumps(SECONDS))
    sys.exit(code)
