"""Bad input through the front door: each has its own message and exit code, and nothing recorded is lost."""

import json
import os
import shutil
import signal
import textwrap
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.projects import copy_project, copy_state, records, run, run_json, start

CARTPOLE = ("loomrl", "run", "configs/cartpole.yaml")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that has run nothing; each test adds a policy of its own."""
    return copy_project(tmp_path_factory.mktemp("faults") / "project")


@pytest.fixture
def finished(finished_project: Path, tmp_path: Path) -> Path:
    return copy_state(finished_project, tmp_path / "project")


def add_policy(project: Path, name: str, environment: str, **extra: str) -> tuple[str, ...]:
    """Write a policy's config and the module of its environment; returns the command that runs it."""
    (project / "users" / name).mkdir(parents=True)
    (project / "users" / name / f"{name}_env.py").write_text(textwrap.dedent(environment))
    (project / "configs" / f"{name}.yaml").write_text(
        f"name: {name}\n"
        f"environment: {{id: {name}, entry_point: '{name}_env:Env', path: users/{name}, max_episode_steps: 50}}\n"
        "training: {total_env_steps: 4096, checkpoint_interval_env_steps: 1024, checkpoint_interval_seconds: 0, "
        "validation: {num_episodes: 2, interval_env_steps: 4096}, "
        "parameters: {num_envs: 4, rollout_length: 128, batch_size: 128}}\n"
        "evaluation: {num_episodes: 4, num_envs: 4}\nsafety: {num_episodes: 8, num_envs: 8}\nexport: {}\n"
    )
    params = project / "params.yaml"
    params.write_text(params.read_text() + f"  - {name}\n")
    return ("loomrl", "run", f"configs/{name}.yaml")


ENVIRONMENT = """
    import gymnasium, numpy as np

    class Env(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)
        steps = training = 0

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.observe(), {{}}

        def observe(self):
            return self.np_random.uniform(-1, 1, 2).astype(np.float32)

        def step(self, action):
            {step}
"""


# Training's seeds are the large ones; a reset within training has none.
KNOWS_TRAINING = "super().reset(seed=seed); self.training = seed >= 2**30 if seed is not None else self.training"


def test_an_unknown_key_and_a_wrong_type_name_the_file_and_the_key(project: Path) -> None:
    output = run(project, *CARTPOLE, "--set", "training.sed=2", expect=2)
    assert "configs/cartpole.yaml: training.sed: unknown key; did you mean 'seed'?" in output
    output = run(project, *CARTPOLE, "--set", "training.seed=many", expect=2)
    assert "training.seed" in output
    assert "found 'many'" in output
    assert records(project) == []


@pytest.mark.long
@pytest.mark.usefixtures("shared_prefect")
def test_an_unknown_algorithm_or_parameter_is_refused_before_anything_runs(project: Path) -> None:
    output = run(project, *CARTPOLE, "--set", "training.algorithm=ppoo", expect=2)
    assert "ppoo" in output
    assert "ppo" in output.replace("ppoo", "")
    output = run(project, *CARTPOLE, "--set", "training.parameters.learning_rat=1", expect=2)
    assert "learning_rat" in output
    assert records(project) == []


def test_an_unknown_environment_names_near_ones(project: Path) -> None:
    output = run(project, *CARTPOLE, "--set", "environment.id=CartPol-v1", expect=2)
    run(project, "git", "checkout", "configs/cartpole.yaml")
    assert "CartPol-v1" in output
    assert "CartPole-v1" in output


@pytest.mark.long
@pytest.mark.usefixtures("shared_prefect")
def test_an_environment_that_breaks_the_api_is_named(project: Path) -> None:
    step = "return np.full(2, np.nan, np.float32), 0.0, False, False, {}"
    output = run(project, *add_policy(project, "broken", ENVIRONMENT.format(step=step)), expect=3)
    assert "'broken', step 1" in " ".join(output.split())
    assert "observation[0] is nan" in " ".join(output.split())
    assert records(project)[-1]["state"] == "failed"


@pytest.mark.long
@pytest.mark.usefixtures("shared_prefect")
def test_a_reward_that_becomes_nan_in_training_stops_it_and_keeps_the_checkpoints(project: Path) -> None:
    # Of training's 4,096 steps the 1,501st is bad, after the first checkpoint.
    step = "Env.steps += self.training; return self.observe(), np.nan if Env.steps > 1500 else 1.0, False, False, {}"
    environment = ENVIRONMENT.format(step=step).replace("super().reset(seed=seed)", KNOWS_TRAINING)
    command = add_policy(project, "late", environment)
    output = run(project, *command, expect=3)
    assert "reward" in output
    assert "nan" in output.lower()
    assert list((project / ".loomrl" / "checkpoints").glob("*/step-*")), "the checkpoint before the fault is kept"


@pytest.mark.long
@pytest.mark.usefixtures("shared_prefect")
def test_data_the_environment_does_not_declare_makes_the_data_gate_stop_the_run(project: Path) -> None:
    # Observations wander out of the declared space, but only in evaluation's seeds: training never sees it.
    step = "return self.observe() * (3 if self.far else 1), 1.0, False, False, {}"
    environment = ENVIRONMENT.format(step=step).replace(
        "super().reset(seed=seed)",
        "super().reset(seed=seed); self.far = seed is not None and 10**6 <= seed < 2 * 10**6",
    )
    command = add_policy(project, "wander", environment)
    output = run(project, *command, expect=1)
    assert "data" in output
    last = records(project)[-1]
    assert last["state"] == "refused"
    assert last["stages"][-1]["name"] == "evaluation"


def test_an_unwritable_home_is_named(project: Path) -> None:
    output = run(project, *CARTPOLE, expect=3, LOOMRL_HOME="/proc/loomrl")
    assert "/proc/loomrl" in output
    assert "set LOOMRL_HOME" in output


@pytest.mark.long
@pytest.mark.usefixtures("shared_prefect")
def test_services_that_do_not_answer_are_named_with_the_fix(project: Path) -> None:
    output = run(project, *CARTPOLE, expect=3, PREFECT_API_URL="http://127.0.0.1:9/api")
    assert "http://127.0.0.1:9/api" in output
    assert "make up" in output
    output = run(project, *CARTPOLE, expect=3, MLFLOW_TRACKING_URI="http://127.0.0.1:9")
    assert "http://127.0.0.1:9" in output
    assert "make up" in output


@pytest.mark.long
@pytest.mark.usefixtures("shared_prefect")
def test_a_corrupt_newest_checkpoint_is_named_and_the_one_before_it_used(project: Path) -> None:
    slow = "import time; time.sleep(0.0005 * self.training); return self.observe(), 1.0, False, False, {}"
    environment = ENVIRONMENT.format(step=slow).replace("super().reset(seed=seed)", KNOWS_TRAINING)
    command = add_policy(project, "torn", environment)
    flow = start(project, *command)
    before = set((project / ".loomrl" / "checkpoints").glob("*"))

    def mine() -> list[Path]:
        folders = set((project / ".loomrl" / "checkpoints").glob("*")) - before
        return sorted(path for folder in folders for path in folder.glob("step-*"))

    deadline = time.monotonic() + 600
    while len(mine()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    stages = [one for one in psutil.Process(flow.pid).children(recursive=True) if "loomrl.runs.stages" in one.cmdline()]
    assert stages
    os.killpg(flow.pid, signal.SIGKILL)
    flow.communicate()
    assert psutil.wait_procs(stages, 60)[1] == []  # it has seen that its parent is gone
    newest = mine()[-1]
    weights = next(newest.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-7])
    before_it = int(mine()[-2].name.removeprefix("step-"))
    output = run(project, *command, expect=None)
    assert newest.name in output
    assert f"training resumes at step {before_it:,}" in output
    assert records(project)[-1]["stages"][1]["status"] == "ran"


@pytest.mark.long
@pytest.mark.usefixtures("shared_prefect")
def test_a_tampered_snapshot_or_policy_is_noticed_and_made_again(finished: Path) -> None:
    archive = finished / "artifacts" / "cartpole" / "environment" / "source.tar"
    graph = finished / "artifacts" / "cartpole" / "export" / "policy.onnx"
    original = {path: path.read_bytes() for path in (archive, graph)}
    for path, data in original.items():
        path.unlink()
        path.write_bytes(data[:-1] + b"x")
    assert "source.tar" in run(finished, "loomrl", "env", "verify", "artifacts/cartpole/environment", expect=3)
    assert "source.tar" in run(finished, *CARTPOLE)
    assert {path: path.read_bytes() for path in original} == original
    assert records(finished)[-1]["state"] == "unchanged"


@pytest.mark.long
@pytest.mark.usefixtures("shared_prefect")
def test_a_tampered_version_in_the_registry_is_never_served(finished: Path, tmp_path: Path) -> None:
    (graph,) = (finished / ".loomrl" / "mlartifacts").rglob("policy.onnx")
    shutil.rmtree(finished / ".loomrl" / "versions", ignore_errors=True)  # copies fetched before the tampering
    data = graph.read_bytes()
    graph.write_bytes(data[:200] + bytes([data[200] ^ 1]) + data[201:])
    port_file = tmp_path / "port.json"
    server = start(finished, "loomrl", "serve", "--policy", "cartpole", "--port", "0", "--port-file", str(port_file))
    try:
        deadline = time.monotonic() + 60
        while not port_file.exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        url = json.loads(port_file.read_text())["url"]
        while "policy.onnx" not in (status := httpx.get(f"{url}/status").text):
            assert time.monotonic() < deadline, status
            time.sleep(0.2)
        body = {"agent_id": "a", "episode_id": "1", "observation": [0.0, 0.0, 0.0, 0.0]}
        assert httpx.get(f"{url}/v2/health/ready").status_code == 503
        assert httpx.post(f"{url}/decide", json=body).status_code == 503
    finally:
        server.terminate()
        server.communicate()
    assert run_json(finished, "loomrl", "policy", "show", "cartpole@champion")["version"] == "1"
