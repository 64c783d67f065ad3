"""Single checks, on policies made to fail them."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from loomrl.algorithms.policies.loading import load_policy
from loomrl.environment.snapshots.snapshot import load_snapshot
from loomrl.environment.spaces import space_from_json
from loomrl.evaluation.evaluate import play
from loomrl.evaluation.tables import TRAJECTORIES, read_table, stack_columns
from loomrl.safety import checks
from loomrl.safety.case.evidence import EvidenceWriter
from loomrl.safety.check import Check, Context
from loomrl.safety.checks import (
    action_bounds,
    disturbed_return,
    finiteness,
    minimum_return,
    observation_attack,
    out_of_distribution,
    robustness,
    stability,
    statistical_limits,
)
from loomrl.safety.config import ConstraintConfig, SafetyConfig
from loomrl.safety.probing import repeats
from loomrl.safety.probing.probes import Disturbance, act_with, extreme_observations, not_members, random_observations
from loomrl.safety.registry import find_checks
from loomrl.system.files import read_json
from loomrl.types import Claim, Episode, LabelKind, Verdict
from tests.support.trained import Policy

Array = np.ndarray[Any, Any]


@pytest.fixture
def context_of(good: Policy, tmp_path: Path) -> Callable[..., Context]:
    """Makes a context around any policy, in the environment of the good one."""
    snapshot = load_snapshot(good.environment)
    space = space_from_json(snapshot.spec.observation)

    def make(
        policy: Callable[[Array], Array] | None = None, episodes: list[Episode] | None = None, **settings: Any
    ) -> Context:
        config = SafetyConfig(num_episodes=40, **settings)
        chosen = policy or load_policy(good.training)
        seeds = range(config.first_seed, config.first_seed + config.num_episodes)
        return Context(
            policy=chosen,
            snapshot=snapshot,
            config=config,
            snapshot_folder=good.environment,
            policy_folder=good.training,
            evaluation_folder=good.evaluation,
            observation_space=space,
            action_space=space_from_json(snapshot.spec.action),
            visited=stack_columns(read_table(good.evaluation / TRAJECTORIES), "obs", space.shape, space.dtype),
            episodes=play(act_with(chosen), good.environment, seeds, 40, "test") if episodes is None else episodes,
            play=lambda act, seeds: play(act, good.environment, seeds, 40, "test"),
            evidence=EvidenceWriter(tmp_path),
        )

    return make


def examine(check: Check, context: Context, **settings: Any) -> Claim:
    config = check.Config(**settings)
    (claim,) = check.examine(context.of(check, config), config)
    return claim


def pushes_right(obs: Array) -> Array:
    return np.ones(len(obs), dtype=np.int64)


# --- statistical limits ---


def test_the_counterexample_is_the_worst_episode(context_of: Callable[..., Context], tmp_path: Path) -> None:
    limit = ConstraintConfig(name="slow", quantity="observation[1]", high=0.5, max_probability=0.1)
    context = context_of(pushes_right, constraints=[limit])
    claim = examine(statistical_limits, context)
    assert claim.verdict is Verdict.REFUTED
    worst = max(context.episodes, key=lambda episode: float(episode.next_obs[:, 1].max()))
    assert claim.counterexample is not None
    assert claim.counterexample.seed == worst.seed
    recorded = read_table(tmp_path / claim.counterexample.evidence.uri)
    assert recorded["next_obs_1"].to_pylist() == worst.next_obs[:, 1].tolist()
    assert len(read_json(tmp_path / claim.evidence[0].uri)["violating_seeds"]) == 40


@pytest.mark.parametrize(("allowed", "verdict", "is_shown"), [(0.2, "undecided", True), (0.5, "supported", False)])
def test_a_limit_that_is_left_open_shows_the_worst_violation(
    context_of: Callable[..., Context], allowed: float, verdict: str, is_shown: bool
) -> None:
    """Of 40 episodes six violate, that of seed 12 most."""
    limit = ConstraintConfig(name="near", quantity="observation[0]", high=1.0, max_probability=allowed)

    def episode(seed: int) -> Episode:
        obs = np.full((5, 4), 3.0 if seed == 12 else 2.0 if seed % 7 == 0 else 0.0)
        zeros = np.zeros(5)
        return Episode(seed, obs, zeros.astype(int), zeros, obs, terminated=False, truncated=True)

    context = context_of(episodes=[episode(seed) for seed in range(1, 41)], constraints=[limit])
    claim = examine(statistical_limits, context)
    assert str(claim.verdict).endswith(verdict)
    assert (claim.counterexample is not None) is is_shown
    assert claim.counterexample is None or claim.counterexample.seed == 12


def test_a_limit_on_steps_counts_episodes_not_steps(context_of: Callable[..., Context]) -> None:
    """With every fourth episode violating throughout, thousands of steps still say little."""
    length = 500

    def episode(seed: int, bad: bool) -> Episode:
        obs = np.full((length, 4), 3.0 if bad else 0.0)
        zeros = np.zeros(length)
        return Episode(seed, obs, zeros.astype(int), zeros, obs, terminated=False, truncated=True)

    limit = ConstraintConfig(name="near", quantity="observation[0]", high=1.0, per="step", max_probability=0.3)
    episodes = [episode(seed, bad=seed % 4 == 0) for seed in range(40)]
    claim = examine(statistical_limits, context_of(episodes=episodes, constraints=[limit]))
    assert claim.verdict is Verdict.UNDECIDED
    assert claim.num_samples == 40
    clean = [episode(seed, bad=False) for seed in range(40)]
    assert examine(statistical_limits, context_of(episodes=clean, constraints=[limit])).verdict is Verdict.SUPPORTED
    bad = [episode(seed, bad=True) for seed in range(40)]
    assert examine(statistical_limits, context_of(episodes=bad, constraints=[limit])).verdict is Verdict.REFUTED


def test_holm_makes_a_family_of_limits_harder_to_support(context_of: Callable[..., Context]) -> None:
    def limits(count: int) -> list[ConstraintConfig]:
        return [
            ConstraintConfig(name=f"limit_{index}", quantity="observation[0]", high=9.0, max_probability=0.08)
            for index in range(count)
        ]

    episodes = context_of(pushes_right).episodes  # 40 clean ones: 36 suffice for one limit of 8 %, not for two
    alone = context_of(episodes=episodes, constraints=limits(1))
    together = context_of(episodes=episodes, constraints=limits(2))
    assert examine(statistical_limits, alone).verdict is Verdict.SUPPORTED
    config = statistical_limits.Config()
    claims = statistical_limits.examine(together.of(statistical_limits, config), config)
    assert {claim.verdict for claim in claims} == {Verdict.UNDECIDED}
    assert all("5 more episodes" in claim.finding for claim in claims)


def test_an_undecided_limit_on_steps_says_how_many_episodes_support_it(context_of: Callable[..., Context]) -> None:
    """The bound of the mean share is looser than the binomial one: what is advised must be enough for it."""
    length = 10

    def episode(seed: int, bad_steps: int) -> Episode:
        obs = np.zeros((length, 4))
        obs[:bad_steps, 0] = 3.0
        zeros = np.zeros(length)
        return Episode(seed, obs, zeros.astype(int), zeros, obs, terminated=False, truncated=True)

    for share, violating, count in ((0.05, 4, 40), (0.3, 12, 40), (0.3, 40, 40)):
        limit = ConstraintConfig(name="near", quantity="observation[0]", high=1.0, per="step", max_probability=share)
        bad = 2 if violating == count else 5
        played = [episode(seed, bad if seed < violating else 0) for seed in range(count)]
        claim = examine(statistical_limits, context_of(episodes=played, constraints=[limit]))
        assert claim.verdict is Verdict.UNDECIDED
        (more,) = map(int, re.findall(r"(-?\d+) more episode", claim.finding))
        assert more > 0
        for added, verdict in ((more, Verdict.SUPPORTED), (more - 1, Verdict.UNDECIDED)):
            longer = played + [episode(seed, 0) for seed in range(count, count + added)]
            assert examine(statistical_limits, context_of(episodes=longer, constraints=[limit])).verdict is verdict


# --- statistical limits with as many episodes as it takes ---


def test_episodes_are_played_until_a_limit_is_supported(context_of: Callable[..., Context], tmp_path: Path) -> None:
    limit = ConstraintConfig(name="track", quantity="observation[0]", low=-2.4, high=2.4, max_probability=0.05)
    claim = examine(statistical_limits, context_of(constraints=[limit]), max_episodes=500)
    assert claim.verdict is Verdict.SUPPORTED
    assert (
        claim.num_samples == 78
    )  # 40, rounds of 16 and 19 more, and as many as a first attempt needs without a violation
    assert claim.bound is not None
    assert claim.bound.kind == "betting upper"
    assert 0.038 < claim.bound.measured <= 0.05
    assert "confidence sequence" in claim.method
    evidence = read_json(tmp_path / claim.evidence[0].uri)
    assert (evidence["num_episodes"], evidence["max_episodes"], evidence["violating_values"]) == (78, 500, [])


def test_seeds_go_on_where_those_of_all_checks_end(context_of: Callable[..., Context]) -> None:
    limit = ConstraintConfig(name="track", quantity="observation[0]", low=-2.4, high=2.4, max_probability=0.01)
    context, played = context_of(constraints=[limit]), []

    def play_told(act: Any, seeds: Any) -> list[Episode]:
        played.extend(seeds)
        return context.play(act, seeds)

    claim = examine(statistical_limits, replace(context, play=play_told), max_episodes=60)
    assert played == list(range(2_000_040, 2_000_060))
    assert claim.verdict is Verdict.UNDECIDED
    assert (
        "266 more episodes without a violation would support it (safety.checks.statistical_limits.max_episodes)"
        in claim.finding
    )


def test_a_limit_that_is_broken_later_is_refuted_with_its_worst_episode(context_of: Callable[..., Context]) -> None:
    limit = ConstraintConfig(name="slow", quantity="observation[1]", high=0.5, per="step", max_probability=0.06)
    calm = context_of(lambda obs: np.asarray(obs[:, 1] < 0.0, dtype=np.int64), constraints=[limit])
    assert not any(np.any(episode.next_obs[:, 1] > 0.5) for episode in calm.episodes)
    claim = examine(statistical_limits, replace(calm, policy=pushes_right), max_episodes=1_000)
    assert claim.verdict is Verdict.REFUTED
    assert claim.num_samples is not None
    assert 40 < claim.num_samples < 1_000
    assert claim.counterexample is not None
    assert claim.counterexample.seed is not None
    assert claim.counterexample.seed >= 2_000_040


@pytest.mark.parametrize(("broken_on", "kind"), [(20, None), (10_000, LabelKind.NEVER_BROKEN)])
def test_a_limit_that_is_broken_later_was_seen_broken(
    context_of: Callable[..., Context], monkeypatch: pytest.MonkeyPatch, broken_on: int, kind: LabelKind | None
) -> None:
    """Once in so many of the further episodes, which the shared ones know nothing of."""
    limit = ConstraintConfig(name="slow", quantity="observation[1]", high=0.5, max_probability=0.05)
    calm = context_of(lambda obs: np.asarray(obs[:, 1] < 0.0, dtype=np.int64), constraints=[limit])
    kept, (broken,) = calm.episodes[0], calm.play(act_with(pushes_right), [7])
    context = replace(calm, play=lambda _, seeds: [kept if seed % broken_on else broken for seed in seeds])
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: [kept])
    claim = examine(statistical_limits, context, max_episodes=120)
    assert claim.finding.startswith("0 of" if kind else "4 of")
    (labelled,) = repeats.label_limits([claim], {claim.id: limit}, {}, {}, context)
    assert (labelled.label and labelled.label.kind) == kind


@pytest.mark.parametrize(
    ("check", "size", "settings"),
    [
        (robustness, "noise", {}),
        (disturbed_return, "noise", {"num_episodes": 4}),
        (observation_attack, "magnitude", {"num_episodes": 2, "num_candidates": 2}),
        (stability, "radius", {"num_visited": 2, "max_boxes": 8}),
    ],
    ids=lambda value: getattr(value, "NAME", None),
)
def test_a_disturbance_too_small_to_change_an_observation_is_not_counted(
    context_of: Callable[..., Context], check: Check, size: str, settings: dict[str, Any]
) -> None:
    limit = ConstraintConfig(name="cart", quantity="observation[0]", high=2.4, max_probability=0.05)
    context = context_of(constraints=[limit])
    nothing = examine(check, context, **settings, **{size: 1e-60})  # adds 0 in float32
    assert nothing.label is not None
    assert nothing.label.kind is LabelKind.CANNOT_BE_FALSE
    assert examine(check, context, **settings, **{size: 0.05}).label is None


@pytest.mark.parametrize(("allowed", "kind"), [(0.1, None), (0.999, LabelKind.NEVER_BROKEN)])
def test_a_fall_of_the_return_that_nothing_reaches_is_not_counted(
    context_of: Callable[..., Context], allowed: float, kind: LabelKind | None
) -> None:
    """Whoever acts, the pole stands for a few steps, and each earns 1."""
    context = context_of(pushes_right)
    settings = {"max_return_drop": allowed, "num_episodes": 8}
    claim = examine(disturbed_return, context, **settings)
    limits = disturbed_return.disturbed_limits(context, disturbed_return.Config(**settings))
    (labelled,) = repeats.label_limits([claim], {}, limits, {}, context)
    assert (labelled.label and labelled.label.kind) == kind


# --- minimum return ---


@pytest.mark.parametrize(
    ("reached", "limit", "verdict"),
    [
        (100, 0.9, Verdict.SUPPORTED),
        (90, 0.9, Verdict.UNDECIDED),
        (60, 0.9, Verdict.REFUTED),
        (0, 0.5, Verdict.REFUTED),
    ],
)
def test_minimum_return(reached: int, limit: float, verdict: Verdict) -> None:
    judged, _ = minimum_return.judge(reached, 100, 475.0, limit, 0.95)
    assert judged.verdict is verdict


def test_minimum_return_says_how_many_more_successes_it_needs() -> None:
    _, finding = minimum_return.judge(20, 20, 475.0, 0.9, 0.95)
    assert "9 more successes would support it" in finding  # 29 of 29: 0.9^29 < 0.05
    assert minimum_return.judge(29, 29, 475.0, 0.9, 0.95)[0].verdict is Verdict.SUPPORTED


# --- falsification ---


def test_an_action_outside_is_found_where_only_extremes_trigger_it(
    context_of: Callable[..., Context], tmp_path: Path
) -> None:
    def policy(obs: Array) -> Array:
        return np.where(np.abs(obs[:, 1]) > 1e5, 2, 0)

    claim = examine(action_bounds, context_of(policy, episodes=[]))
    assert claim.verdict is Verdict.REFUTED
    assert claim.counterexample is not None
    assert "Discrete(2)" in claim.counterexample.description
    tried = read_json(tmp_path / claim.evidence[0].uri)["examples"][0]["observation"]
    assert abs(tried[1]) > 1e5


@pytest.mark.parametrize(("kind", "size", "repeats"), [("squashed", 1.0, True), ("", 1.0, False)])
def test_a_policy_that_keeps_its_bounds_can_only_break_them_without_a_number(
    context_of: Callable[..., Context], kind: str, size: float, repeats: bool
) -> None:
    class Squashed:
        action_kind = kind

        def __call__(self, obs: Array) -> Array:
            return np.full((len(obs), 1), size, np.float32)

    context = replace(context_of(Squashed(), episodes=[]), action_space=spaces.Box(-2, 2, (1,)))
    claim = examine(action_bounds, context)
    assert (claim.label and claim.label.claim) == ("finiteness" if repeats else None)


@pytest.mark.parametrize(
    ("space", "actions", "expected"),
    [
        (spaces.Discrete(2), np.array([0, 1, 2, -1]), [False, False, True, True]),
        (spaces.Discrete(2), np.array([0.0, 0.5]), [False, True]),
        (spaces.Discrete(2), np.array([[0], [1]]), [True, True]),
        (spaces.Discrete(3, start=-1), np.array([-1, 1, 2]), [False, False, True]),
        (spaces.Box(-1, 1, (2,)), np.array([[0, 1], [0, 1.1], [np.nan, 0]]), [False, True, True]),
        (spaces.Box(-1, 1, (2,)), np.zeros((2, 3)), [True, True]),
        (spaces.MultiBinary(2), np.array([[0, 1], [2, 0]], dtype=np.int8), [False, True]),
    ],
)
def test_members_of_an_action_space(space: spaces.Space[Any], actions: Array, expected: list[bool]) -> None:
    assert not_members(space, actions).tolist() == expected


def test_weights_that_are_not_finite_are_found_behind_a_discrete_action(context_of: Callable[..., Context]) -> None:
    import torch

    context = context_of(episodes=[])
    with torch.no_grad():
        next(context.policy.actor.parameters()).fill_(float("nan"))
    assert examine(action_bounds, context).verdict is Verdict.SUPPORTED
    claim = examine(finiteness, context)
    assert claim.verdict is Verdict.REFUTED
    assert "logits" in claim.counterexample.description


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-np.inf, np.inf, (3,)),
        spaces.Box(np.float32([0.0, -3.4e38]), np.float32([1.0, 3.4e38])),
        spaces.Box(0, 255, (4, 4), np.uint8),
        spaces.Discrete(5, start=2),
    ],
)
def test_probes_are_members_of_the_space(space: spaces.Space[Any]) -> None:
    rng = np.random.default_rng(0)
    visited = np.array([space.sample() for _ in range(10)])
    for probe in (random_observations, extreme_observations):
        drawn = probe(space, visited, 50, rng)
        assert len(drawn) >= 5
        assert all(row in space for row in drawn)


# --- robustness ---


def test_noise_is_the_same_for_an_observation_in_any_batch() -> None:
    space = spaces.Box(-1, 1, (4,))
    disturb = Disturbance(space, np.full(4, 0.1), key=3)
    obs = np.random.default_rng(0).uniform(-1, 1, (2_000, 4)).astype(np.float32)
    noisy = disturb(obs)
    assert np.array_equal(disturb(obs[7:8]), noisy[7:8])
    assert np.std((noisy - obs)[np.all(np.abs(obs) < 0.5, axis=1)]) == pytest.approx(0.1, rel=0.1)
    assert all(row in space for row in noisy)
    assert not np.array_equal(Disturbance(space, np.full(4, 0.1), key=4)(obs), noisy)


def test_a_policy_that_reads_the_last_bits_is_not_robust(context_of: Callable[..., Context]) -> None:
    def brittle(obs: Array) -> Array:
        return np.asarray(np.floor(obs[:, 0] * 1e5) % 2, dtype=np.int64)

    claim = examine(robustness, context_of(brittle, episodes=[]))
    assert claim.verdict is Verdict.REFUTED
    assert claim.bound is not None
    assert claim.bound.measured == pytest.approx(0.5, abs=0.05)
    assert not claim.mandatory
    assert examine(robustness, context_of(pushes_right, episodes=[])).verdict is Verdict.SUPPORTED


def test_repeated_observations_do_not_support_what_is_false(context_of: Callable[..., Context]) -> None:
    """Ten states, each recorded 400 times: noise must be drawn 4,000 times, not ten."""
    chance, limit = 0.27, 0.25
    states = np.array([[side, index, 0.0, 0.0] for side in (-1.0, 1.0) for index in range(5)], dtype=np.float32)
    inner = 1.0 - 0.05 * NormalDist().inv_cdf(1.0 - chance)  # noise of 0.05 reaches it with `chance`

    def policy(obs: Array) -> Array:
        return np.asarray(np.abs(obs[:, 0]) < inner, dtype=np.int64)

    context = replace(context_of(policy, episodes=[]), visited=np.repeat(states, 400, axis=0))
    false_support, changes = 0, []
    for seed in range(60):
        drawn = replace(context, config=SafetyConfig(first_seed=seed))
        claim = examine(robustness, drawn, noise=0.05, max_action_change=limit)
        false_support += claim.verdict is Verdict.SUPPORTED
        changes.append(float(claim.finding.split()[4]))
    assert np.mean(changes) == pytest.approx(chance, abs=0.01)
    assert false_support <= 60 * 0.05


def test_change_of_continuous_actions_is_a_share_of_their_range() -> None:
    space = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 1.0]), dtype=np.float64)
    change = robustness.action_change(space, np.zeros((2, 2)), np.array([[1.0, 0.1], [0.0, 0.5]]))
    assert change.tolist() == [0.25, 0.5]


def test_noise_that_ruins_the_return_is_refuted_with_its_worst_episode(context_of: Callable[..., Context]) -> None:
    claim = examine(disturbed_return, context_of(), noise=20.0, num_episodes=16, mandatory=True)
    assert claim.verdict is Verdict.REFUTED
    assert claim.counterexample is not None
    assert claim.counterexample.evidence is not None
    assert claim.bound is not None
    assert claim.bound.measured > claim.bound.limit


# --- out-of-distribution ---


def test_the_alarm_is_calibrated_and_sees_shifts() -> None:
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(3, 3))
    draws = [rng.normal(size=(20_000, 3)) @ mixing for _ in range(3)]
    detector = out_of_distribution.calibrate_detector(draws[0], draws[1], 0.01)
    assert np.mean(detector.alarms(draws[2])) == pytest.approx(0.01, abs=0.002)
    # For Gaussian data the threshold is the 99 % quantile of chi-squared with 3 degrees of freedom.
    assert detector.threshold == pytest.approx(11.34, rel=0.03)
    power = [out_of_distribution.shift_power(detector, [draws[2]], shift)["least"] for shift in (0.0, 3.0, 8.0)]
    assert power[0] < 0.02 < power[1] < power[2]


def test_a_component_that_never_varies_does_not_break_it() -> None:
    obs = np.random.default_rng(0).normal(size=(500, 2)) * [1.0, 0.0]
    detector = out_of_distribution.calibrate_detector(obs, obs, 0.05)
    assert np.isfinite(detector.score(obs)).all()
    assert detector.alarms(np.array([[0.0, 1.0]])).all()


def test_ood_file_holds_what_serving_needs(context_of: Callable[..., Context], tmp_path: Path) -> None:
    context = context_of()
    claim = examine(out_of_distribution, context)
    document = read_json(tmp_path / "ood.json")
    assert set(document) == {"mean", "precision", "threshold", "alpha"}
    detector = out_of_distribution.Detector(
        np.array(document["mean"]), np.array(document["precision"]), document["threshold"]
    )
    assert detector.alarms(np.array([[50.0, 0, 0, 0]])).all()
    assert np.mean(detector.alarms(context.visited.astype(float))) < 0.05
    assert claim.evidence[0].uri == "ood.json"


def test_every_check_keeps_the_contract() -> None:
    found = find_checks()
    assert {check.__name__.rpartition(".")[2] for check in found.values()} >= {
        path.stem for path in Path(checks.__file__).parent.glob("[!_]*.py")
    }
    for name, check in found.items():
        assert name == check.NAME
        assert check.Config().enabled
        assert check.__doc__
