"""What every algorithm that is found must hold to, third-party ones included, on each of its engines.

The cases are made in `tests/support/conforming.py`. A package of others is held to the same by installing it.
"""

import copy
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from loomrl.algorithms.base import Algorithm
from loomrl.algorithms.policies.loading import load_policy
from loomrl.algorithms.policies.onnx_graph import INPUT, build_graph
from loomrl.environment.collecting.collector import Collector
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.resolve import resolve
from loomrl.environment.vector.choose import make_vector
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import ConfigError, EnvironmentFault, LoomRLError
from loomrl.serving.policy.model import STATE_IN, STATE_OUT, open_session
from loomrl.system.files import canonical_json
from loomrl.training.checkpoints import Checkpoint, CheckpointStore
from loomrl.training.loop import TrainingLoop
from loomrl.training.validation import MakeEnvs
from loomrl.types import Trajectory
from tests.support.conforming import (
    ALGORITHMS,
    OBSERVATIONS,
    Case,
    accepts,
    engines_of,
    space_cases,
    usual_cases,
)

OPSET = 17
TOLERANCE = 1e-4

every_case = pytest.mark.parametrize("case", usual_cases(), ids=str)
every_space = pytest.mark.parametrize("case", space_cases(), ids=str)


def rollouts(case: Case, algorithm: Algorithm, count: int, **how: Any) -> list[Trajectory]:
    """Of the algorithm as it is, in environments of its own."""
    envs = case.environments(algorithm.num_envs, **how)
    collector, rng = Collector(envs, 1, algorithm.act), np.random.default_rng(0)
    found = [collector.collect(algorithm.rollout_length, rng) for _ in range(count)]
    envs.close()
    return found


def learn(algorithm: Algorithm, trajectories: list[Trajectory]) -> list[dict[str, float]]:
    rng = np.random.default_rng(2)
    return [algorithm.update(trajectory, rng) for trajectory in trajectories]


def weights(algorithm: Algorithm) -> dict[str, bytes]:
    return {name: value.tobytes() for name, value in algorithm.policy.arrays().items()}


def loop(case: Case, algorithm: Algorithm, segments: int, **how: Any) -> TrainingLoop:
    return loop_in(lambda num_envs, _: case.environments(num_envs, **how), algorithm, segments)


def loop_in(make_envs: MakeEnvs, algorithm: Algorithm, segments: int) -> TrainingLoop:
    """Training in segments of two updates, as the life cycle trains."""
    size = 2 * algorithm.num_envs * algorithm.rollout_length
    return TrainingLoop(
        algorithm,
        make_envs,
        seed=5,
        total_env_steps=segments * size,
        segment_env_steps=size,
        validation=None,
    )


# --- spaces -----------------------------------------------------------------------------------------------------


@every_space
def test_a_space_is_learnt_from_or_refused_by_name(case: Case, tmp_path: Path) -> None:
    if not accepts(case.algorithm, case.observation, case.action):
        refused(case)
        return
    algorithm = case.build()
    policy, before = algorithm.policy, weights(algorithm)
    trajectories = rollouts(case, algorithm, 2)
    for metrics in learn(algorithm, trajectories):
        assert metrics
        assert all(isinstance(value, float) and math.isfinite(value) for value in metrics.values())
    assert algorithm.policy is policy
    assert weights(algorithm) != before
    is_exported_as_it_acts(case, algorithm, flat(trajectories[0].obs), tmp_path)


def refused(case: Case) -> None:
    """With the space, or the part of it that is at fault, in the message."""
    with pytest.raises(ConfigError) as error:
        case.build()
    observation = OBSERVATIONS[case.observation]
    names = [observation, case.action_space, *getattr(observation, "spaces", {}).values()]
    assert any(str(space) in str(error.value) or f"of shape {space.shape}" in str(error.value) for space in names)


def is_exported_as_it_acts(case: Case, algorithm: Algorithm, obs: NDArray[Any], folder: Path) -> None:
    """Learnt, saved and loaded, and exported policy give the same actions for observations (N, *obs)."""
    algorithm.policy.save(folder)
    loaded = load_policy(folder)
    rng = np.random.default_rng(0)
    graph = open_session(build_graph(loaded, OPSET), case.algorithm)
    names = [output.name for output in graph.get_outputs()]
    memory: dict[str, Any] = {}
    for _ in range(3 if loaded.memory_size else 1):
        feeds = {INPUT: obs}
        if loaded.memory_size:
            memory = memory or {"memory": np.zeros((len(obs), loaded.memory_size), np.float32)}
            feeds[STATE_IN] = memory["memory"]
        answer = dict(zip(names, graph.run(None, feeds), strict=True))
        for policy in (algorithm.policy, loaded):
            chosen = policy.act(obs, rng, **memory)
            assert chosen.action.dtype == case.action_space.dtype
            assert all(case.action_space.contains(action) for action in np.asarray(chosen.action))
            np.testing.assert_allclose(answer["action"], chosen.action, rtol=TOLERANCE, atol=TOLERANCE)
            assert np.array_equal(policy(obs), chosen.action) or memory
            if chosen.value is not None:
                np.testing.assert_allclose(answer["value"], chosen.value, rtol=TOLERANCE, atol=TOLERANCE)
            if chosen.memory is not None:
                np.testing.assert_allclose(answer[STATE_OUT], chosen.memory, rtol=TOLERANCE, atol=TOLERANCE)
        if loaded.memory_size:
            memory = {"memory": answer[STATE_OUT]}


def flat(values: NDArray[Any]) -> NDArray[Any]:
    """(T, B, ...) -> (T x B, ...)."""
    return values.reshape(-1, *values.shape[2:])


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_the_engine_that_learns_is_the_one_that_was_chosen(algorithm: str) -> None:
    for case in (one for one in space_cases() if one.algorithm == algorithm and accepts(*one.key)):
        config = case.config()
        if case.engine is None:
            assert case.build().engine == "torch"
            continue
        spaces = case.observation_space, case.action_space
        assert case.plugin.choose_engine(config, *spaces) == case.engine
        assert case.build().engine == case.engine


# --- determinism ------------------------------------------------------------------------------------------------


@every_case
def test_equal_inputs_give_equal_bytes_and_other_seeds_others(case: Case) -> None:
    def trained(seed: int) -> dict[str, Any]:
        return state_bytes(run(loop(case, case.build(seed=seed), 1)))

    first = trained(1)
    shared = np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes(), random.getstate()
    assert trained(1) == first
    assert trained(2) != first
    drawn = np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes(), random.getstate()
    assert drawn == shared  # nothing is drawn from generators that others use


@every_case
def test_what_it_learns_from_stays_as_it_was(case: Case) -> None:
    algorithm = case.build()
    trajectories = rollouts(case, algorithm, 2)
    before = copy.deepcopy(trajectories)
    learn(algorithm, trajectories)
    for trajectory, expected in zip(trajectories, before, strict=True):
        for name, value in vars(trajectory).items():
            np.testing.assert_equal(value, getattr(expected, name))


# --- resuming ---------------------------------------------------------------------------------------------------


@every_case
def test_it_goes_on_from_a_checkpoint_to_the_bit(case: Case, tmp_path: Path) -> None:
    undisturbed = loop(case, case.build(), 2)
    with CheckpointStore(tmp_path, keep=9) as store:
        segments = undisturbed.run()
        first = next(segments)
        safe(first)
        store.save(first)
        kept = state_bytes(first)
        (last,) = segments
        assert state_bytes(first) == kept  # it is no view of what goes on
        resumed = loop(case, case.build(seed=2), 2)  # other weights: all of them are replaced
        saved = store.newest()
        assert saved is not None
        resumed.restore(saved)
        assert state_bytes(resumed.checkpoint()) == kept
        assert state_bytes(run(resumed)) == state_bytes(last)
        assert state_bytes(saved) == kept


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("algorithm", [name for name in sorted(ALGORITHMS) if "compiled" in engines_of(name)])
def test_compiled_environments_are_resumed_to_the_bit(algorithm: str, name: str, tmp_path: Path) -> None:
    """Where the algorithm has a collector of its own that steps them."""
    recipe = Recipe(resolve(EnvironmentConfig(id=name), tmp_path))
    env = recipe.make()

    def training(seed: int) -> TrainingLoop:
        config = Case(algorithm, "compiled").config()
        try:
            built = ALGORITHMS[algorithm].build(
                config, env.observation_space, env.action_space, seed=seed, total_env_steps=96
            )
        except ConfigError as refused:
            pytest.skip(str(refused))
        return loop_in(lambda count, _: make_vector(recipe, count, "same_step", "batched"), built, 2)

    undisturbed, resumed = training(1), training(2)
    first, last = undisturbed.run()
    resumed.restore(first)
    assert state_bytes(run(resumed)) == state_bytes(last)


def safe(checkpoint: Checkpoint) -> None:
    """Arrays of numbers, and what JSON has."""
    assert all(array.dtype.kind in "biuf" for array in checkpoint.arrays.values())
    assert all(isinstance(value, int | float | str) for value in checkpoint.values["algorithm"].values())


def run(training: TrainingLoop) -> Checkpoint:
    *_, last = training.run()
    return last


def state_bytes(checkpoint: Checkpoint) -> dict[str, Any]:
    arrays = {name: (array.shape, str(array.dtype), array.tobytes()) for name, array in checkpoint.arrays.items()}
    return arrays | {"values": canonical_json(checkpoint.values)}


# --- extremes ---------------------------------------------------------------------------------------------------

EXTREMES: dict[str, dict[str, Any]] = {
    "millions": {"reward": lambda rng: 1e6 * float(rng.choice([-1, 1])), "scale": 1e6},
    "rewards of a million": {"reward": lambda rng: 1e6},
    "nothing but zeros": {"reward": lambda rng: 0.0, "scale": 0.0},
}


@pytest.mark.parametrize("extreme", EXTREMES)
@every_case
def test_extremes_stay_finite(case: Case, extreme: str) -> None:
    algorithm = case.build()
    training = loop(case, algorithm, 2, **EXTREMES[extreme])
    run(training)
    assert all(math.isfinite(value) for row in training.rows.all() for value in row.values())
    assert all(np.isfinite(value).all() for value in algorithm.policy.arrays().values())


NAMED = {
    "rewards of NaN": ({"reward": lambda rng: math.nan}, "gave reward nan, .*; saved checkpoints are intact"),
    "rewards that overflow": ({"reward": lambda rng: 1e300}, "gave reward 1e.300, .*; saved checkpoints are intact"),
}
DIVERGED = r"is (inf|-inf|nan) after \d+ environment steps; saved checkpoints are intact|the policy chose the action"
overflows = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")


@pytest.mark.parametrize("fault", NAMED)
@every_case
def test_impossible_rewards_are_named(case: Case, fault: str) -> None:
    how, message = NAMED[fault]
    algorithm = case.build()
    before = weights(algorithm)
    with pytest.raises(EnvironmentFault, match=message):
        run(loop(case, algorithm, 2, **how))
    assert weights(algorithm) == before


@every_case
@overflows
def test_observations_that_overflow_do_no_harm_or_are_named(case: Case) -> None:
    training = loop(case, case.build(), 2, scale=3e38)
    message = ""
    try:
        run(training)
    except LoomRLError as error:
        message = str(error)
    finite = all(np.isfinite(value).all() for value in training.algorithm.policy.arrays().values())
    assert re.search(DIVERGED, message) if message else finite


@every_case
@overflows
def test_an_explosion_is_named(case: Case) -> None:
    fields = case.plugin.Config.model_fields
    rates = {name: 1e37 for name in fields if name.endswith("learning_rate")}
    if not rates:
        pytest.skip("it has no learning rate")
    with pytest.raises(LoomRLError, match=DIVERGED):
        run(loop(case, case.build(activation="relu", **rates), 3))  # tanh would hide it for long
