"""One run of one trainer in a process of its own, and the file that keeps what came of it."""

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from peers.cases import Case, Trainer

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parents[1]
RAW = PROJECT / "benchmarks" / "results" / "raw"
PEERS_PYTHON = PROJECT / ".venv-peers" / "bin" / "python"
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_SCRIPTS = {"loomrl": (sys.executable, "loom.py"), "stage": (sys.executable, "stage.py")}


class RunFailed(Exception):
    """A trainer ended with an error; the message holds the end of what it wrote."""


def raw_path(case: Case, trainer: Trainer, seed: int) -> Path:
    """The file of one (case, trainer, seed)."""
    return RAW / case.name / f"{trainer.name}-{seed}.json"


def execute(case: Case, trainer: Trainer, seed: int, snapshot: Path, pinned: bool) -> dict[str, Any]:
    """Run it and return its line, with what was asked for and on which machine.

    `pinned` keeps the process on as many cores as the case has threads: JAX knows no other limit.
    """
    run = _run(case, trainer, seed, snapshot)
    cores = _cores(case.threads) if pinned else None
    environment = {**os.environ, **dict.fromkeys(_THREADS, str(run["threads"])), "PYTHONWARNINGS": "ignore"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # all trainers start from compiled modules
    python, script = _SCRIPTS.get(trainer.package, (str(PEERS_PYTHON), "sb3.py"))
    run["started_at"] = time.time()
    done = subprocess.run(
        [python, str(HERE / script), json.dumps(run)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,  # no threads here
    )
    if done.returncode != 0:
        raise RunFailed(f"{case.name} {trainer.name} seed {seed}: {done.stderr[-2000:]}")
    del run["snapshot"], run["started_at"]
    return {"run": run, "machine": machine(), **json.loads(done.stdout.splitlines()[-1])}


def write(path: Path, document: Any) -> None:
    """JSON that a reader can look at: one line for each key, whole rows on it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".partial")
    lines = [f"{json.dumps(key)}: {json.dumps(_rounded(value), sort_keys=True)}" for key, value in document.items()]
    temporary.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    temporary.replace(path)


def machine() -> dict[str, Any]:
    """What the figures depend on, without naming the machine."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
    }


def _run(case: Case, trainer: Trainer, seed: int, snapshot: Path) -> dict[str, Any]:
    return {
        "case": case.name,
        "trainer": trainer.name,
        "algorithm": trainer.algorithm,
        "environment": case.environment,
        "seed": seed,
        "total_env_steps": trainer.total_env_steps or case.total_env_steps,
        "num_envs": trainer.num_envs,
        "normalize": trainer.normalize,
        "settings": trainer.settings,
        "threads": trainer.threads or case.threads,
        "matmul_precision": trainer.matmul_precision,
        "greedy_every": case.greedy_every,
        "greedy_episodes": case.greedy_episodes,
        "greedy_first_seed": case.greedy_first_seed,
        "stop_at_return": case.stop_at_return,
        "snapshot": str(snapshot),
    }


def _cores(count: int) -> set[int]:
    """The last cores this process may use: the first ones serve interrupts."""
    return set(sorted(os.sched_getaffinity(0))[-count:])


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


def shortened(case: Case, total_env_steps: int) -> Case:
    """The same case over fewer steps: to see that everything runs."""
    trainers = tuple(replace(one, total_env_steps=None) for one in case.trainers)
    return replace(case, total_env_steps=total_env_steps, warm_up_env_steps=0, seeds=case.seeds[:1], trainers=trainers)
