"""Shields: what they allow is safe, what they forbid is not, and nothing unsafe happens behind one."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from loomrl.environment.finite.of_environment import TERMINATED, Modelled, model_of
from loomrl.environment.finite.prism.syntax import read_property
from loomrl.environment.finite.shield import NoState, Shield
from loomrl.environment.finite.shielding import allowed_choices, build_shield
from loomrl.errors import ArtifactError, ConfigError
from loomrl.gym.prism import PrismEnvironment
from loomrl.safety.model_checking.pctl import check
from tests.support.prism_models import RING


def lake(**kwargs: object) -> tuple[gymnasium.Env, Modelled, NDArray[np.bool_]]:
    env = gymnasium.make("FrozenLake-v1", **kwargs)
    modelled = model_of(env)
    holes = modelled.model.states.labels[TERMINATED] & (modelled.observations != modelled.observations.max())
    return env, modelled, holes


def ring() -> tuple[gymnasium.Env, Modelled, NDArray[np.bool_]]:
    env = PrismEnvironment(RING, terminal="crash")
    modelled = env.finite_model()
    return env, modelled, modelled.model.states.labels["crash"]


@pytest.mark.parametrize("action", [-1, 9])
def test_an_action_that_the_model_does_not_have_is_refused(action: int) -> None:
    env = PrismEnvironment(RING, terminal="crash")
    env.reset(seed=0)
    with pytest.raises(ValueError, match=f"action {action} is none of"):
        env.step(action)


@pytest.mark.parametrize("name", ["slippery lake", "lake", "large lake", "ring"])
def test_random_actions_behind_it_violate_nothing_in_a_million_steps(name: str) -> None:
    made = {
        "slippery lake": lambda: lake(is_slippery=True),
        "lake": lambda: lake(is_slippery=False),
        "large lake": lambda: lake(map_name="8x8", is_slippery=True),
        "ring": ring,
    }
    env, modelled, unsafe = made[name]()
    choices_allowed, risk = allowed_choices(modelled.model, unsafe)
    assert risk[int(np.flatnonzero(modelled.model.states.initial)[0])].min() == 0.0  # it can be kept safe
    rng, states = np.random.default_rng(11), modelled.model.states
    steps, position = 250_000, int(np.flatnonzero(states.initial)[0])
    allowed = [np.flatnonzero(row) for row in choices_allowed]
    draws, moves = rng.random(steps), rng.random(steps)
    model = modelled.model
    cumulated = [
        np.cumsum(model.probabilities[model.row_start[c] : model.row_start[c + 1]]) for c in range(model.num_choices)
    ]
    visited = {position}
    for index in range(steps):
        choices = allowed[position]
        choice = int(model.choice_start[position]) + int(choices[int(draws[index] * len(choices))])
        place = min(int(np.searchsorted(cumulated[choice], moves[index], side="right")), len(cumulated[choice]) - 1)
        position = int(model.columns[model.row_start[choice] + place])
        assert not unsafe[position]
        if states.labels[TERMINATED][position]:
            position = int(np.flatnonzero(states.initial)[0])
        visited.add(position)
    assert len(visited) > 1  # it is not safe by never moving


def test_the_environment_itself_stays_safe_behind_it() -> None:
    env, modelled, unsafe = lake(is_slippery=True)
    shield, rng = build_shield(modelled, unsafe), np.random.default_rng(2)
    obs, _ = env.reset(seed=1)
    for _ in range(20_000):
        (action,) = shield.correct(np.array([obs]), np.array([rng.integers(4)]))
        obs, reward, terminated, truncated, _ = env.step(int(action))
        assert not terminated or reward == 1.0  # the goal, never a hole
        if terminated or truncated:
            obs, _ = env.reset()


def test_what_it_forbids_may_end_badly_and_what_it_allows_does_not() -> None:
    _, modelled, unsafe = ring()
    model = modelled.model
    choices_allowed, risk = allowed_choices(model, unsafe)
    safe = risk.min(axis=1) == 0.0
    for state in np.flatnonzero(safe).tolist():
        for action, allowed in enumerate(choices_allowed[state].tolist()):
            choice = int(model.choice_start[state]) + action
            targets = model.columns[model.row_start[choice] : model.row_start[choice + 1]]
            assert allowed == bool(safe[targets].all())


def test_the_least_risk_is_that_of_the_best_policy() -> None:
    _, modelled, _ = lake(is_slippery=True)
    goal = modelled.model.states.labels[TERMINATED] & (modelled.observations == modelled.observations.max())
    _, risk = allowed_choices(modelled.model, goal)  # the goal itself is to be avoided: risks lie between 0 and 1
    best = np.argmin(risk, axis=1)
    chain = modelled.model.chain(modelled.model.choice_start[:-1] + best)
    states = chain.states.with_label("avoid", goal)
    answer = check(
        type(chain)(states, chain.row_start, chain.columns, chain.probabilities, {}), read_property('P=? [ F "avoid" ]')
    )
    assert answer.low is not None
    assert answer.low == pytest.approx(risk[0].min(), abs=1e-9)


def random_model(rng: np.random.Generator, size: int = 12) -> tuple[Modelled, NDArray[np.bool_]]:
    """States that lead to a few others each, with choices that stay, and some that are bad."""
    commands = []
    for state in range(size):
        for name in "abc":
            targets = rng.choice(size, int(rng.integers(1, 4)), replace=False)
            if rng.random() < 0.3:
                targets = np.array([state])
            shares = rng.dirichlet(np.ones(len(targets)))
            shares[-1] = 1.0 - shares[:-1].sum()
            ends = " + ".join(
                f"{share!r} : (x'={target})" for share, target in zip(shares.tolist(), targets, strict=True)
            )
            commands.append(f"[{name}] x={state} -> {ends};")
    bad = " | ".join(f"x={state}" for state in rng.choice(size, 2, replace=False))
    text = f'mdp module m x : [0..{size - 1}]; {" ".join(commands)} endmodule label "bad" = {bad};'
    modelled = PrismEnvironment(text).finite_model()
    return modelled, modelled.model.states.labels["bad"]


@pytest.mark.parametrize("seed", range(30))
def test_risks_are_the_least_there_are(seed: int) -> None:
    """Beside value iteration from below, which converges to the least risks, slowly."""
    modelled, bad = random_model(np.random.default_rng(seed))
    model = modelled.model
    choices_allowed, risk = allowed_choices(model, bad)
    owner = np.repeat(np.arange(model.num_choices), np.diff(model.row_start))
    least = bad.astype(np.float64)
    for _ in range(20_000):
        weights = model.probabilities * least[model.columns]
        each = np.bincount(owner, weights=weights, minlength=model.num_choices).reshape(risk.shape)
        least = np.where(bad, 1.0, each.min(axis=1))
    each = np.where(bad[:, None], 1.0, each)
    np.testing.assert_allclose(risk, each, atol=1e-6)
    assert (choices_allowed == (each <= each.min(axis=1, keepdims=True) + 1e-7))[~bad].all()


def test_a_tolerance_allows_more_where_nothing_is_safe_for_ever() -> None:
    text = """
        mdp
        module m
          x : [0..2];
          [a] x=0 -> 0.1 : (x'=1) + 0.9 : (x'=2);
          [b] x=0 -> 0.11 : (x'=1) + 0.89 : (x'=2);
          [c] x=0 -> 0.5 : (x'=1) + 0.5 : (x'=2);
        endmodule
        label "bad" = x=1;
    """
    modelled = PrismEnvironment(text).finite_model()
    bad = modelled.model.states.labels["bad"]
    assert build_shield(modelled, bad).allowed[0].tolist() == [True, False, False]
    assert build_shield(modelled, bad, tolerance=0.2).allowed[0].tolist() == [True, True, False]
    assert build_shield(modelled, bad).risk[0].tolist() == [0.1, 0.11, 0.5]
    with pytest.raises(ConfigError, match="tolerance is -1; it is at least 0"):
        build_shield(modelled, bad, tolerance=-1.0)


@pytest.mark.parametrize("chance", ["1e-6", "1e-13", "0.01"])
def test_waiting_for_an_accident_is_not_the_least_risk(chance: str) -> None:
    """Each step of waiting risks little and there is no end of them; going risks half, once."""
    text = f"""
        mdp
        module m
          x : [0..2];
          [wait] x=0 -> {chance} : (x'=1) + 1-{chance} : true;
          [go] x=0 -> 0.5 : (x'=1) + 0.5 : (x'=2);
        endmodule
        label "bad" = x=1;
    """
    modelled = PrismEnvironment(text).finite_model()
    choices_allowed, risk = allowed_choices(modelled.model, modelled.model.states.labels["bad"])
    assert choices_allowed[0].tolist() == [False, True]
    assert risk[0, 1] == pytest.approx(0.5)


def test_it_survives_a_file_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    _, modelled, unsafe = lake(is_slippery=True)
    shield = build_shield(modelled, unsafe)
    shield.save(tmp_path / "shield.safetensors")
    again = Shield.load(tmp_path / "shield.safetensors")
    assert again.allowed.tolist() == shield.allowed.tolist()
    assert (
        again.correct(np.array([0, 3]), np.array([1, 1])).tolist()
        == shield.correct(np.array([0, 3]), np.array([1, 1])).tolist()
    )
    (tmp_path / "damaged").write_bytes((tmp_path / "shield.safetensors").read_bytes()[:40])
    with pytest.raises(ArtifactError, match="damaged is no shield, or was damaged"):
        Shield.load(tmp_path / "damaged")


@pytest.mark.parametrize("action", [-1, 9, -0.5, 0.5])
def test_an_action_of_no_choice_is_not_taken_for_another(action: float) -> None:
    env, modelled, unsafe = ring()
    state, _ = env.reset(seed=0)
    with pytest.raises(IndexError):
        build_shield(modelled, unsafe).correct(np.asarray(state)[None], np.array([action]))


def test_an_observation_of_no_state_is_refused() -> None:
    _, modelled, unsafe = ring()
    with pytest.raises(NoState, match=r"observation \[0.5, 3.0\] is no state of the shield's model"):
        build_shield(modelled, unsafe).correct(np.array([[0.5, 3.0]], np.float32), np.array([0]))
