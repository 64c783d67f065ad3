"""Finite models of environments: the same probabilities as the environment's steps."""

from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from loomrl.environment.config import EnvironmentConfig, RangeConfig
from loomrl.environment.finite.of_environment import TERMINATED, Modelled, model_of
from loomrl.environment.make import make_env
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.errors import ConfigError
from loomrl.gym.prism import PrismEnvironment

ROVER = """
mdp
const int size = 4;
module rover
  x : [0..size];
  battery : [0..5] init 5;
  [drive] x<size & battery>0 -> 0.8 : (x'=x+1) & (battery'=battery-1) + 0.2 : (battery'=battery-1);
  [wait] battery>0 & battery<5 -> 0.5 : (battery'=battery+1) + 0.5 : true;
  [] battery=0 & x<size -> true;
endmodule
rewards "progress" [drive] true : 1; endrewards
rewards "energy" [drive] true : 2; [wait] true : -0.5; endrewards
label "arrived" = x=size;
label "stranded" = battery=0 & x<size;
label "over" = x=size | battery=0;
"""


@pytest.fixture(scope="module")
def lake() -> Modelled:
    env = gymnasium.make("FrozenLake-v1", is_slippery=True)
    return model_of(env)


def test_a_table_becomes_choices_with_absorbing_ends(lake: Modelled) -> None:
    model = lake.model
    assert model.states.labels[TERMINATED].sum() == 5  # four holes and the goal
    assert lake.observations.tolist() == [*range(16), 5, 7, 11, 12, 15]
    totals = np.add.reduceat(model.probabilities, model.row_start[:-1])
    assert np.allclose(totals, 1.0, atol=1e-12)
    ends = np.flatnonzero(model.states.labels[TERMINATED])
    for state in ends.tolist():
        for choice in range(model.choice_start[state], model.choice_start[state + 1]):
            assert model.columns[model.row_start[choice] : model.row_start[choice + 1]].tolist() == [state]
            assert model.rewards["reward"][choice] == 0.0


@pytest.mark.parametrize("name", ["FrozenLake-v1", "CliffWalking-v1", "Taxi-v4"])
def test_steps_follow_the_model(name: str) -> None:
    env = gymnasium.make(name)
    modelled, rng = model_of(env), np.random.default_rng(3)
    model = modelled.model
    ended = model.states.labels[TERMINATED]
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        for _ in range(30):
            action = int(rng.integers(len(model.action_names)))
            choice = int(model.choice_start[int(obs)]) + action
            after, reward, terminated, _, _ = env.step(action)
            targets = model.columns[model.row_start[choice] : model.row_start[choice + 1]]
            possible = {(int(modelled.observations[one]), bool(ended[one])) for one in targets}
            assert (int(after), bool(terminated)) in possible
            if len(possible) == 1:
                assert reward == pytest.approx(model.rewards["reward"][choice])
            if terminated:
                break
            obs = after


def test_a_prism_model_is_an_environment_that_keeps_the_rules() -> None:
    check_env(PrismEnvironment(ROVER, terminal="over"), skip_render_check=True)


def test_its_steps_are_as_frequent_as_the_model_says() -> None:
    env = PrismEnvironment(ROVER, reward="progress", cost="energy", terminal="over")
    assert env.finite_model().model.action_names == ("drive", "wait")
    counts, episodes = np.zeros(2), 4_000
    env.reset(seed=5)
    for _ in range(episodes):
        obs, info = env.reset()
        assert obs.tolist() == [0.0, 5.0]
        after, reward, terminated, truncated, info = env.step(0)
        assert (reward, info["cost"], terminated, truncated) == (1.0, 2.0, False, False)
        counts[int(after[0])] += 1
    assert counts[1] / episodes == pytest.approx(0.8, abs=0.03)


def test_an_action_that_is_not_offered_changes_nothing_and_earns_nothing() -> None:
    env = PrismEnvironment(ROVER, reward="energy", terminal="over")
    obs, _ = env.reset(seed=1)
    after, reward, terminated, _, _ = env.step(1)  # nothing to wait for: the battery is full
    assert after.tolist() == obs.tolist()
    assert (reward, terminated) == (0.0, False)


def test_a_snapshot_keeps_it(tmp_path: Path) -> None:
    config = EnvironmentConfig(
        id="rover",
        entry_point="loomrl.gym.prism:PrismEnvironment",
        kwargs={"model": ROVER, "terminal": "over"},
        max_episode_steps=40,
    )
    take_snapshot(config, tmp_path, tmp_path / "snapshot")
    env = make_env(tmp_path / "snapshot")
    assert len(model_of(env).model.states) == len(PrismEnvironment(ROVER, terminal="over").finite_model().model.states)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"terminal": "home"}, 'there is no label "home"'),
        ({"reward": "gold"}, 'the model has no rewards "gold"; rewards: progress, energy'),
        ({"model": "mdp module m x : [0..1]; [a] true -> (x'=0); [a] true -> (x'=1); endmodule"}, "are action 'a'"),
        ({"model": "mdp module m x : [0..1]; [] true -> (x'=0); [] true -> (x'=1); endmodule"}, "without a name"),
        ({"constants": {"speed": 3}}, "there is no constant 'speed'"),
    ],
)
def test_what_is_wrong_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PrismEnvironment(**{"model": ROVER, **arguments})  # type: ignore[arg-type]


def test_an_environment_without_a_model_says_so() -> None:
    with pytest.raises(ConfigError, match=r"CartPoleEnv has no finite model: it needs a method finite_model\(\)"):
        model_of(gymnasium.make("CartPole-v1"))


def test_a_policy_that_takes_what_is_no_action(lake: Modelled) -> None:
    with pytest.raises(ConfigError, match=r"the policy takes action 7 in state .*; actions are 0 to 3"):
        lake.chain(np.full(len(lake.observations), 7))


def test_a_model_below_a_wrapper_that_changes_things_is_refused() -> None:
    env = gymnasium.make("FrozenLake-v1")
    assert len(model_of(gymnasium.wrappers.TimeLimit(env, 30)).model.states) == 21
    with pytest.raises(ConfigError, match="TransformReward is wrapped around FrozenLakeEnv"):
        model_of(gymnasium.wrappers.TransformReward(env, lambda reward: 2 * reward))


class Described(gymnasium.Env):
    """Its finite model is whatever it is given."""

    observation_space, action_space = gymnasium.spaces.Box(0.0, 9.0, (2,), np.float32), gymnasium.spaces.Discrete(2)

    def __init__(self, modelled: Modelled) -> None:
        self.modelled = modelled

    def finite_model(self) -> Modelled:
        return self.modelled


@pytest.mark.parametrize("what", ["sum", "negative", "choices", "column", "rows", "dtype"])
def test_a_model_that_is_none_is_named(what: str) -> None:
    modelled = PrismEnvironment(ROVER, reward="progress").finite_model()
    model = modelled.model
    probabilities, columns, changed = model.probabilities.copy(), model.columns.copy(), modelled
    if what == "sum":
        probabilities[3] -= 0.4
    elif what == "negative":
        place = int(np.flatnonzero(np.diff(model.row_start) == 2)[0])
        first = int(model.row_start[place])
        probabilities[first : first + 2] = [1.5, -0.5]
    elif what == "column":
        columns[0] = len(model.states)
    model = replace(model, probabilities=probabilities, columns=columns)
    if what == "choices":
        model = replace(model, choice_start=np.concatenate([[0, 1], model.choice_start[2:]]))
    if what == "rows":
        model = replace(model, row_start=model.row_start[:-1])
    changed = replace(modelled, model=model)
    if what == "dtype":
        changed = replace(changed, observations=changed.observations.astype(np.float64))
    message = {
        "sum": r"finite model at .*probabilities do not sum to 1",
        "negative": "a probability is -0.5; leave out what cannot happen",
        "choices": "every state has one choice for each of 2 actions",
        "column": "a transition leads to a state that is not there",
        "rows": "row_start does not fit",
        "dtype": "a policy observes float32, and states of the finite model are float64",
    }
    with pytest.raises(ConfigError, match=message[what]):
        model_of(Described(changed))


def test_an_environment_that_is_another_one_in_every_episode_has_no_model(tmp_path: Path) -> None:
    drawn = {"success_rate": RangeConfig(low=0.1, high=0.9)}
    take_snapshot(EnvironmentConfig(id="FrozenLake-v1", randomize=drawn), Path(), tmp_path)
    env = make_env(tmp_path)
    with pytest.raises(ConfigError, match="in every episode: there is no one model of it"):
        model_of(env)
