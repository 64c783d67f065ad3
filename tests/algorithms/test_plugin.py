"""What a plug-in and its algorithm may offer: names that are nearly right are errors, names of their own are not.

An algorithm that does not derive from the base class works for one more release.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loomrl.algorithms import ppo
from loomrl.algorithms.adopted import AdoptedAlgorithm, adopted
from loomrl.algorithms.base import MEMBERS, Algorithm, TrainingContext
from loomrl.algorithms.members import misspelt
from loomrl.algorithms.plugin import LoadedPlugin
from loomrl.environment.collecting.collector import Collector
from loomrl.errors import ConfigError
from loomrl.training.loop import TrainingLoop
from loomrl.types import Act
from tests.support.conforming import ALGORITHMS, Case, space_cases

CASE = Case("ppo", "torch")


class Bare(Algorithm):
    """All that is abstract, and nothing else."""

    num_envs, rollout_length = 2, 8

    @property
    def policy(self) -> Any:
        return None

    def act(self, obs: Any, rng: Any) -> Act:
        return Act(np.zeros(len(obs), np.int64))

    def update(self, trajectory: Any, rng: Any) -> dict[str, float]:
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None:
        pass


def plugin(kind: Any, **members: Any) -> LoadedPlugin:
    def build(config: Any, observation: Any, action: Any, *, seed: int, total_env_steps: int) -> Any:
        return kind()

    return LoadedPlugin.of(SimpleNamespace(**{"NAME": "mine", "Config": ppo.Config, "build": build} | members), "here")


def built(kind: Any, **members: Any) -> Algorithm:
    return plugin(kind, **members).build(ppo.Config(), None, None, seed=0, total_env_steps=1)  # type: ignore[arg-type]


def test_what_is_left_out_has_a_default() -> None:
    algorithm, found = built(Bare), plugin(Bare)
    assert (algorithm.engine, algorithm.device, algorithm.cost_limit) == ("torch", "cpu", None)
    algorithm.close()
    with pytest.raises(NotImplementedError, match="Bare has no with_log_prob, which ACTS_BY_POLICY asks for"):
        algorithm.with_log_prob(None)  # type: ignore[arg-type]
    envs = CASE.environments(2)
    collector = algorithm.collector(envs, 0)
    assert type(collector) is Collector
    assert collector.collect(3, np.random.default_rng(0)).num_transitions == 6
    envs.close()
    assert (found.Policy, found.ACTS_BY_POLICY, found.takes_peers, found.takes_context) == (None, False, False, False)
    assert found.choose_engine(None, None, None) == "torch"  # type: ignore[arg-type]
    assert found.for_backend("as it was", "batched") == "as it was"
    with pytest.raises(ConfigError, match="backend: device gives tensors, from which algorithm 'mine' does not learn"):
        found.for_backend(None, "device")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("cost_limt", "cost_limit"),
        ("cost_limits", "cost_limit"),
        ("costLimit", "cost_limit"),
        ("colector", "collector"),
        ("clsoe", "close"),
        ("engin", "engine"),
        ("devise", "device"),
        ("with_logprobs", "with_log_prob"),
    ],
)
def test_a_misspelt_member_of_an_algorithm_is_named(wrong: str, right: str) -> None:
    message = rf"{wrong}: unknown member; did you mean '{right}'\?"
    with pytest.raises(ConfigError, match=message):
        type("Misspelt", (Bare,), {wrong: 1.0})

    class Later(Bare):
        def __init__(self) -> None:
            setattr(self, wrong, 1.0)

    with pytest.raises(ConfigError, match=rf"Later\.{message}"):
        built(Later)
    with pytest.raises(ConfigError, match=message):
        built(type("Duck", (), {**members(Bare), wrong: 1.0}))


def test_a_misspelt_required_member_is_named() -> None:
    with pytest.raises(ConfigError, match=r"Half\.updte: unknown member; did you mean 'update'\?"):
        type("Half", (Algorithm,), {"updte": Bare.update})


def test_members_of_its_own_are_no_slips() -> None:
    own = (
        "restart",
        "config",
        "peers",
        "learner",
        "version",
        "my_collector",
        "close_replay",
        "_cost_limt",
        "policy_loss",
    )
    built(type("Own", (Bare,), dict.fromkeys(own, 1)))
    plugin(
        Bare, PPOConfig=1, builder=1, MyPolicy=1, ConfigError=1, _chose_engine=1, policy=SimpleNamespace, Policy=None
    )
    assert misspelt(MEMBERS, MEMBERS) is None


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("Polcy", "Policy"), ("chose_engin", "choose_engine"), ("for_back_ends", "for_backend"),
     ("ACT_BY_POLICY", "ACTS_BY_POLICY"), ("acts_by_policy", "ACTS_BY_POLICY")],
)  # fmt: skip
def test_a_misspelt_member_of_a_plugin_is_named(wrong: str, right: str) -> None:
    with pytest.raises(ConfigError, match=rf"here: {wrong}: unknown member; did you mean '{right}'\?"):
        plugin(Bare, **{wrong: None})


def test_a_misspelt_argument_of_build_is_named() -> None:
    def build(config: Any, observation: Any, action: Any, *, seed: int, total_env_steps: int, peer: Any = None) -> Any:
        return Bare()

    with pytest.raises(ConfigError, match="here: build takes 'peer', which nobody gives; did you mean 'peers'"):
        plugin(Bare, build=build)


def test_build_may_take_the_context_under_its_former_name() -> None:
    given: dict[str, Any] = {}

    def now(config: Any, observation: Any, action: Any, *, seed: int, total_env_steps: int, context: Any) -> Any:
        given["now"] = context
        return Bare()

    def before(
        config: Any, observation: Any, action: Any, *, seed: int, total_env_steps: int, surroundings: Any
    ) -> Any:
        given["before"] = surroundings
        return Bare()

    context = TrainingContext(segment_env_steps=3)
    for build in (now, before):
        assert plugin(Bare, build=build).takes_context
    plugin(Bare, build=now).build(ppo.Config(), None, None, seed=0, total_env_steps=1, context=context)  # type: ignore[arg-type]
    with pytest.warns(DeprecationWarning, match="`surroundings`, which is `context` now"):
        plugin(Bare, build=before).build(ppo.Config(), None, None, seed=0, total_env_steps=1, context=context)  # type: ignore[arg-type]
    assert given == {"now": context, "before": context}


def test_what_a_plugin_promises_its_algorithm_has() -> None:
    with pytest.raises(ConfigError, match="'mine' says ACTS_BY_POLICY, but Bare has no with_log_prob"):
        built(Bare, ACTS_BY_POLICY=True)

    class Sizeless(Bare):
        num_envs: int = property(lambda self: self._absent)  # type: ignore[assignment]

    with pytest.raises(ConfigError, match="Sizeless must set num_envs"):
        built(Sizeless)


# --- of third parties, not derived ------------------------------------------------------------------------------


def members(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_")}


class OldCollector:
    """Takes what acts with every call."""

    def __init__(self, envs: Any, seed: int) -> None:
        self.envs, self.seed = envs, seed
        self.finished: list[tuple[float, int]] = []
        self._inner: Collector | None = None

    def collect(self, act: Any, num_steps: int, rng: np.random.Generator) -> Any:
        self._inner = self._inner or Collector(self.envs, self.seed, act)
        return self._inner.collect(num_steps, rng)


def duck(algorithm: Algorithm, **more: Any) -> Any:
    """The same algorithm, of a class that does not derive from the base class."""
    names = ("num_envs", "rollout_length", "policy", "act", "update", "state_dict", "load_state_dict")
    return SimpleNamespace(**{name: getattr(algorithm, name) for name in names} | more)


def trained(algorithm: Algorithm) -> dict[str, Any]:
    size = 2 * algorithm.num_envs * algorithm.rollout_length
    loop = TrainingLoop(
        algorithm,
        lambda num_envs, _: CASE.environments(num_envs),
        seed=5,
        total_env_steps=size,
        segment_env_steps=size,
        validation=None,
    )
    *_, last = loop.run()
    return {name: array.tobytes() for name, array in last.arrays.items()}


@pytest.mark.parametrize("more", [{}, {"collector": OldCollector}, {"policy": "without play"}])
def test_an_algorithm_that_does_not_derive_works_and_is_warned_of(more: dict[str, Any], tmp_path: Path) -> None:
    expected = trained(CASE.build())
    algorithm = CASE.build()
    policy = algorithm.policy
    if "policy" in more:
        more = {"policy": SimpleNamespace(act=policy.act, arrays=policy.arrays, save=policy.save)}
    with pytest.warns(DeprecationWarning, match="does not derive from loomrl.algorithms.base.Algorithm"):
        found = adopted(duck(algorithm, **more), "mine")
    assert isinstance(found, AdoptedAlgorithm)
    assert trained(found) == expected
    assert found.policy is found.policy
    found.policy.save(tmp_path)
    assert found.policy.play(None, [1]) is None  # type: ignore[arg-type]
    assert (found.engine, found.device, found.cost_limit) == ("torch", "cpu", None)
    found.close()


def test_its_optional_members_are_handed_on() -> None:
    closed: list[int] = []
    more = {"engine": "own", "device": "GPU", "cost_limit": 3.0, "close": lambda: closed.append(1), "beta": 0.5}
    with pytest.warns(DeprecationWarning, match="does not derive"):
        found = adopted(duck(CASE.build(), **more, with_log_prob=lambda trajectory: trajectory), "mine")
    assert (found.engine, found.device, found.cost_limit, found.beta) == ("own", "GPU", 3.0, 0.5)  # type: ignore[attr-defined]
    assert found.with_log_prob("same") == "same"  # type: ignore[arg-type, comparison-overlap]
    found.close()
    assert closed == [1]


def test_one_that_lacks_what_is_required_is_refused() -> None:
    lacking = duck(CASE.build())
    del lacking.update, lacking.state_dict
    with pytest.raises(ConfigError, match="lacks update, state_dict; derive it from loomrl.algorithms.base.Algorithm"):
        adopted(lacking, "mine")


# --- every registered one ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_own_algorithms_derive_from_the_base_class(name: str) -> None:
    case = next((one for one in space_cases() if one.algorithm == name), Case(name, None))
    try:
        algorithm = case.build()
    except ConfigError:  # of texts: tests/language/algorithms/test_learning.py
        return
    assert isinstance(algorithm, Algorithm)
    assert not isinstance(algorithm, AdoptedAlgorithm)
