"""Upgrade in place: what earlier commits made goes on with this one. Served, replayed, promoted over, rolled back, run.

For each commit a clone of this repository is set to it; its own code runs CartPole's life cycle there, serves the
champion and decides. Then the same folder is set to this commit, its state left as it is. All of them run with the
packages of this environment: between these commits packages were added and none was changed.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import httpx

ROOT = Path(__file__).parents[2]
COMMITS = ("cc7093e", "0375cfd", "f2ebf1e")
NUM_REQUESTS = 100  # of four agents each, every fifth explored, and as many of one agent
SEEDS = (3, 4, 5, 6)  # of the trainings after the upgrade, until one is promoted
_PATIENCE_SECONDS = 600
_CLI = """
try:
    from loomrl.cli.main import main
except ImportError:  # where the command line was one file
    from loomrl.cli import main
main()
"""


def run(folder: Path) -> dict[str, Any]:
    """What each commit's home came to.

    Raises:
        AssertionError: where something that worked before the upgrade does not after it.
    """
    return {commit: upgraded(folder / commit, commit) for commit in COMMITS}


def upgraded(project: Path, commit: str) -> dict[str, Any]:
    """Make a project with a commit's code, and go on with this one's."""
    _git(ROOT, "clone", "--quiet", str(ROOT), str(project))
    _git(project, "checkout", "--quiet", commit)
    loomrl(project, "run", "configs/cartpole.yaml")
    decided_before = decide(project)

    _git(project, "fetch", "--quiet", str(ROOT), "HEAD")
    _git(project, "checkout", "--quiet", "--force", "FETCH_HEAD")
    is_signed = any((project / ".loomrl" / "mlartifacts").rglob("model.sig"))
    if not is_signed:
        loomrl(project, "policy", "sign", "cartpole", "--by", "Ada", "--reason", "from before versions were signed")
    decided_after = decide(project)
    loomrl(project, "audit", "verify")
    replayed = json.loads(loomrl(project, "audit", "recompute", "--json"))
    assert replayed["num_equal"] == replayed["num_decisions"], replayed
    num_refused = _run_until_promoted(project)
    promoted = _aliases(project)
    assert promoted["champion"] != promoted["previous"] == "1", promoted
    loomrl(project, "policy", "rollback", "cartpole", "--reason", "upgrade", "--by", "Ada", "--direct")
    assert _aliases(project)["champion"] == "1"
    decided_last = decide(project)
    loomrl(project, "audit", "verify")
    last = json.loads(loomrl(project, "audit", "recompute", "--json"))
    assert last["num_equal"] == last["num_decisions"], last
    return {
        "signed_again": not is_signed,
        "decided": [decided_before, decided_after, decided_last],
        "replayed": [replayed["num_equal"], last["num_equal"]],
        "by": last["by"],
        "refused": num_refused,
        "promoted": promoted["champion"],
    }


def _run_until_promoted(project: Path) -> int:
    """Train with one seed after the other until one takes the old champion's place; how many the gate refused."""
    for num_refused, seed in enumerate(SEEDS):
        if _ran(project, "run", "configs/cartpole.yaml", "--set", f"training.seed={seed}").returncode == 0:
            return num_refused
    raise AssertionError(f"{project.name}: none of the seeds {SEEDS} was promoted")


def loomrl(project: Path, *arguments: str) -> str:
    """A command, with the code that lies in the project; what it prints."""
    done = _ran(project, *arguments)
    assert done.returncode == 0, f"{project.name}: loomrl {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
    return done.stdout


def _ran(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same, also where a gate refused."""
    command = [sys.executable, "-c", _CLI, *arguments]
    done = subprocess.run(command, cwd=project, env=_environment(project), capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), f"{project.name}: loomrl {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
    return done


def decide(project: Path) -> int:
    """Let the project's code serve, and agents play; how many decisions were made."""
    with _serving(project) as client:
        envs = [gymnasium.make("CartPole-v1") for _ in range(4)]
        observations = [env.reset(seed=number)[0] for number, env in enumerate(envs)]
        for step in range(NUM_REQUESTS):
            asked = [
                {"agent_id": f"cart-{number}", "observation": observation.tolist(), "explore": step % 5 == 0}
                for number, observation in enumerate(observations)
            ]
            answers = [*_posted(client, "/decide", {"requests": asked})["decisions"]]
            answers.append(_posted(client, "/decide", {"agent_id": "one", "observation": asked[0]["observation"]}))
            for number, env in enumerate(envs):
                observation, reward, terminated, truncated, _ = env.step(answers[number]["action"])
                told = {"reward": reward, "terminated": terminated, "truncated": truncated}
                _posted(client, "/feedback", {"decision_id": answers[number]["decision_id"], **told})
                observations[number] = env.reset()[0] if terminated or truncated else observation
    return NUM_REQUESTS * 5


@contextmanager
def _serving(project: Path) -> Iterator[httpx.Client]:
    """A client of a server that has its champion."""
    port_file = project / ".loomrl" / "upgrades.port"
    port_file.unlink(missing_ok=True)
    command = [sys.executable, "-c", _CLI, "serve", "--policy", "cartpole", "--port", "0"]
    server = subprocess.Popen([*command, "--port-file", str(port_file)], cwd=project, env=_environment(project))
    try:
        _await(lambda: port_file.is_file() or server.poll() is not None, "the server")
        assert server.poll() is None, f"{project.name}: the server ended"
        with httpx.Client(base_url=json.loads(port_file.read_text())["url"], timeout=_PATIENCE_SECONDS) as client:
            _await(lambda: _has_champion(client), "a champion")
            yield client
    finally:
        server.terminate()
        server.wait(_PATIENCE_SECONDS)


def _has_champion(client: httpx.Client) -> bool:
    status = client.get("/status").json()
    assert not status["refused"], status["refused"]
    return status["roles"]["champion"] is not None


def _await(condition: Any, what: str) -> None:
    until = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < until, f"{what} did not come"
        time.sleep(0.2)


def _posted(client: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    answer = client.post(path, json=body)
    assert answer.is_success, answer.text
    return answer.json()


def _aliases(project: Path) -> dict[str, str]:
    rows = json.loads(loomrl(project, "policy", "list", "cartpole", "--json"))
    return {alias: row["version"] for row in rows for alias in row["aliases"]}


def _environment(project: Path) -> dict[str, str]:
    """Imports find the project's code first; its state lies in the project."""
    unset = ("LOOMRL_HOME", "MLFLOW_TRACKING_URI", "LOOMRL_DATABASE_URL", "PREFECT_API_URL")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    programs = f"{Path(sys.executable).parent}:{kept['PATH']}"
    return {**kept, "PATH": programs, "PYTHONPATH": str(project / "src"), "DVC_NO_ANALYTICS": "1", "DO_NOT_TRACK": "1"}


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout
