"""Values that are not finite, environments that raise, die or hang: named with environment, step and key."""

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from pydantic import ValidationError

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_envs
from loomrl.environment.resolve import resolve
from loomrl.environment.snapshots.snapshot import load_snapshot
from loomrl.environment.vector import processes
from loomrl.environment.vector.batched import BatchedVectorEnv
from loomrl.environment.vector.choose import load_backend, make_vector
from loomrl.environment.vector.device import DeviceVectorEnv
from loomrl.environment.vector.mujoco import MujocoVectorEnv
from loomrl.environment.vector.processes import ProcessesVectorEnv
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.runs.config import load_config
from loomrl.runs.stages import Folders
from loomrl.runs.stages import environment as environment_stage

PROJECT = Path(".")
PENDULUM = Path("configs/pendulum.yaml")


def gymnasium_recipe(name: str, **kwargs: Any) -> Recipe:
    return Recipe(resolve(EnvironmentConfig(id=name, kwargs=kwargs), PROJECT))


def unreliable(what: str, where: str = "step", timeout_seconds: float = 60.0) -> Recipe:
    kwargs: dict[str, object] = {"what": what, "where": where}
    config = EnvironmentConfig(id="unreliable", entry_point="unreliable_env:Unreliable", kwargs=kwargs)
    return Recipe(resolve(config, PROJECT), timeout_seconds=timeout_seconds)


@contextmanager
def made(recipe: Recipe, backend: str) -> Iterator[VectorEnv]:
    with closing(make_vector(recipe, 3, "same_step", backend)) as envs:
        envs.reset(seed=0)
        yield envs


def steps(envs: VectorEnv, number: int) -> None:
    for _ in range(number):
        envs.step(np.ones(envs.action_space.shape, envs.action_space.dtype))


def test_a_batched_state_that_is_not_finite_is_named() -> None:
    with made(gymnasium_recipe("CartPole-v1"), "batched") as envs:
        assert isinstance(envs, BatchedVectorEnv)
        envs.step(np.zeros(3, np.int64))
        envs.states[1, 3] = np.nan
        with pytest.raises(EnvironmentFault, match=r"'CartPole-v1' \(number 1 of 3\), step 2: observation\[1\] is nan"):
            envs.step(np.zeros(3, np.int64))


@pytest.mark.parametrize(("name", "bad"), [("CartPole-v1", 2), ("Pendulum-v1", np.inf)])
def test_a_bad_action_moves_nothing(name: str, bad: float) -> None:
    with made(gymnasium_recipe(name), "batched") as envs:
        assert isinstance(envs, BatchedVectorEnv)
        actions = np.zeros(envs.action_space.shape, envs.action_space.dtype)
        actions[2] = bad
        before = envs.states.copy()
        with pytest.raises(EnvironmentFault, match=r"\(number 2 of 3\), step 1: action .* is not in"):
            envs.step(actions)
        assert (envs.states == before).all()


def test_a_reward_that_is_not_finite_is_named() -> None:
    with made(
        gymnasium_recipe("Hopper-v5", ctrl_cost_weight=float("1e308"), forward_reward_weight=1e308), "mujoco"
    ) as envs:
        assert isinstance(envs, MujocoVectorEnv)
        with (
            np.errstate(all="ignore"),
            pytest.raises(EnvironmentFault, match=r"'Hopper-v5' \(number \d of 3\), step \d+: reward is"),
        ):
            steps(envs, 50)
        with pytest.raises(EnvironmentFault, match=r"number 0 of 3\), step \d+: action .* is not finite"):
            envs.step(np.full((3, 3), np.nan, np.float32))


def test_a_tensor_state_that_is_not_finite_is_named() -> None:
    with made(gymnasium_recipe("CartPole-v1"), "device") as envs:
        assert isinstance(envs, DeviceVectorEnv)
        envs.check_finite()
        envs.states[2, 0] = torch.inf
        with pytest.raises(EnvironmentFault, match=r"\(number 2 of 3\), step 0: state is \[inf"):
            envs.check_finite()
        with pytest.raises(EnvironmentFault, match="integers of shape"):
            envs.step(torch.zeros(3))


@pytest.mark.parametrize("backend", ["serial", "processes"])
@pytest.mark.parametrize(("what", "message"), [
    ("nan", r"'unreliable', step 3 \(episode's reset seed 1\): observation\[0\] is nan"),
    ("raise", r"'unreliable', step 3 .*: step raised RuntimeError: the valve is stuck"),
])  # fmt: skip
def test_the_guard_reports_from_any_process(
    backend: str, what: str, message: str, capfd: pytest.CaptureFixture
) -> None:
    with made(unreliable(what), backend) as envs, pytest.raises(EnvironmentFault, match=message):
        steps(envs, 3)
    capfd.readouterr()  # a worker prints its traceback too


@pytest.mark.parametrize(("what", "message"), [
    ("exit", r"'unreliable': number 1 of 3 ended its process with code 7 during `step`"),
    ("kill", r"'unreliable': number 1 of 3 was killed by SIGKILL during `step`"),
    ("hang", r"'unreliable': number 1 of 3 did not answer `step` within 1.5 s; .* raise environment.timeout_seconds"),
])  # fmt: skip
def test_a_worker_that_dies_or_hangs_is_named_in_time(what: str, message: str) -> None:
    envs = ProcessesVectorEnv(unreliable(what), 3, AutoresetMode.SAME_STEP)
    envs.reset(seed=0)
    envs.timeout_seconds = 1.5
    started = time.monotonic()
    with pytest.raises(EnvironmentFault, match=message):
        steps(envs, 3)
    assert time.monotonic() - started < 10
    assert not any(process.is_alive() for process in envs.processes)
    envs.close()


class Patient(ProcessesVectorEnv):
    """Its time-out begins when worker 0 has made its environment, however long Python takes to start."""

    def _check_spaces(self) -> None:
        assert self.parent_pipes[0].poll(60)
        super()._check_spaces()


HANGS = r"'unreliable': number 1 of 2 did not answer `{}` within 0.5 s; .* raise environment.timeout_seconds"


@pytest.mark.parametrize(("what", "timeout_seconds", "message"), [
    ("hang", 0.5, HANGS.format("__init__")),
    ("exit", 60.0, r"'unreliable': number 1 of 2 ended its process with code 7 during `__init__`"),
    ("raise", 60.0, r"'unreliable': the constructor raised RuntimeError: the valve is stuck \(number 1 of 2\); all"),
    ("differ", 60.0, r"'unreliable': number 1 of 2 has other spaces than the one made before it: .*Discrete\(2\); let"),
])  # fmt: skip
def test_a_worker_without_an_environment_is_named_in_time(what: str, timeout_seconds: float, message: str) -> None:
    with pytest.raises(EnvironmentFault, match=message):
        Patient(unreliable(what, "__init__", timeout_seconds), 2, AutoresetMode.SAME_STEP)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(("what", "message"), [
    ("ignore", HANGS.format("close")),
    ("exit", r"'unreliable': number 1 of 2 ended its process with code 7 during `close`"),
    ("raise", r"'unreliable': number 1 of 2: `close` raised RuntimeError: the valve is stuck; all its processes"),
])  # fmt: skip
def test_a_worker_that_does_not_close_is_named_in_time(
    what: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.5)
    envs = ProcessesVectorEnv(unreliable(what, "close"), 2, AutoresetMode.SAME_STEP)
    envs.reset(seed=0)
    envs.timeout_seconds = 0.5 if what == "ignore" else 60.0
    started = time.monotonic()
    with pytest.raises(EnvironmentFault, match=message):
        envs.close()
    assert time.monotonic() - started < 10
    assert not multiprocessing.active_children()
    assert envs.closed


def test_a_worker_that_cannot_make_its_environment_anew_is_named(capfd: pytest.CaptureFixture) -> None:
    envs = ProcessesVectorEnv(unreliable("raise", "second __init__"), 2, AutoresetMode.SAME_STEP)
    with pytest.raises(EnvironmentFault, match=r"the constructor raised RuntimeError: .* \(number 1 of 2\)"):
        envs.renew()
    assert not multiprocessing.active_children()
    capfd.readouterr()


def test_a_process_that_lives_on_after_an_interrupted_call_is_ended() -> None:
    envs = ProcessesVectorEnv(unreliable("hang"), 2, AutoresetMode.SAME_STEP)
    envs.reset(seed=0)
    for _ in range(2):
        envs.step(np.ones(2, np.int64))
    envs.step_async(np.ones(2, np.int64))  # the third: number 1 hangs
    started = time.monotonic()
    envs.close()
    assert time.monotonic() - started < 10
    assert not multiprocessing.active_children()


def test_an_interrupt_from_the_keyboard_is_left_to_whoever_started_the_workers() -> None:
    envs = ProcessesVectorEnv(unreliable(""), 2, AutoresetMode.SAME_STEP)
    envs.reset(seed=0)
    for process in envs.processes:
        os.kill(process.pid, signal.SIGINT)
    observations, *_ = envs.step(np.ones(2, np.int64))
    assert observations.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    envs.close()
    assert not multiprocessing.active_children()


def test_the_time_limit_of_the_config_reaches_the_workers_and_not_the_snapshot(tmp_path: Path) -> None:
    digests = set()
    for seconds in (60.0, 7.5):
        overrides = {"backend": "processes", "timeout_seconds": seconds, "fingerprint_episodes": 1}
        config = load_config(PENDULUM, {f"environment.{key}": value for key, value in overrides.items()})
        folders = Folders(tmp_path, f"after_{seconds:g}_seconds")
        environment_stage.run(config, folders)
        digests.add(load_snapshot(folders["environment"]).digest)
    assert len(digests) == 1
    with closing(make_envs(folders["environment"], 1)) as envs:
        assert isinstance(envs, ProcessesVectorEnv)
        assert envs.timeout_seconds == 7.5
    with pytest.raises(ValidationError, match="greater than 0"):
        EnvironmentConfig(id="Pendulum-v1", timeout_seconds=0.0)


def test_a_config_asks_for_what_there_is() -> None:
    with pytest.raises(ConfigError, match="environment.backend 'fast' is unknown; back-ends: auto, batched"):
        load_backend("fast")
    with pytest.raises(ConfigError, match="environment.backend 'batched' does not have 'LunarLander-v3'; use \"auto\""):
        make_vector(gymnasium_recipe("LunarLander-v3"), 2, "same_step", "batched")
    with pytest.raises(ConfigError, match="its own vector environment has autoreset NextStep, SameStep is needed"):
        make_vector(gymnasium_recipe("CartPole-v1"), 2, "same_step", "gymnasium")
    with pytest.raises(ConfigError, match="num_envs is 0"):
        make_vector(gymnasium_recipe("CartPole-v1"), 0, "same_step", "batched")


def test_parameters_that_envpool_lacks_are_refused() -> None:
    pytest.importorskip("envpool")
    with pytest.raises(ConfigError, match=r"environment.kwargs \(g\) do not reach EnvPool's 'Pendulum-v1'"):
        make_vector(gymnasium_recipe("Pendulum-v1", g=9.0), 2, "same_step", "envpool")


def test_a_vector_entry_point_that_restarts_in_the_same_step_is_used() -> None:
    import gymnasium

    gymnasium.register("Twins-v0", "unreliable_env:Unreliable", vector_entry_point="unreliable_env:unreliable_vector")
    try:
        with made(gymnasium_recipe("Twins-v0"), "gymnasium") as envs:
            assert envs.step(np.ones(3, np.int64))[0].tolist() == [[1.0, 1.0]] * 3
    finally:
        del gymnasium.registry["Twins-v0"]


def test_a_shorter_limit_reaches_the_vector() -> None:
    recipe = gymnasium_recipe("CartPole-v1")
    short = Recipe(replace(recipe.definition, max_episode_steps=2))
    with made(short, "batched") as envs:
        assert not envs.step(np.zeros(3, np.int64))[3].any()
        assert envs.step(np.zeros(3, np.int64))[3].all()
