"""The rules that look at production: side by side, and by the champion's log."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.promotion.review import review
from loomrl.promotion.rules import inputs_digest
from loomrl.storage.audit.heads import anchor
from loomrl.storage.audit.log import AuditLog, ChainHead
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHAMPION as ACTING
from loomrl.storage.registry import PolicyVersion, Registry
from loomrl.types import Claim, Verdict
from tests.support.live import decide, play
from tests.support.policy_versions import config, register, shadow_report
from tests.support.projects import copy_home
from tests.support.side_by_side import dealt
from tests.support.simulated_logs import CHALLENGER, CHAMPION, Bandit, greedy, register_linear, write_log
from tests.support.template_home import at_home

Pair = tuple[Registry, PolicyVersion, PolicyVersion]


@pytest.fixture(scope="module")
def homes(template_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`signed`: of a champion and a challenger that pass every other rule, evaluated with returns of 5; `deciding`: of
    two that really decide."""
    folder = tmp_path_factory.mktemp("pairs")
    with at_home(folder / "signed", template_home):
        registry = Registry()
        champion = register(folder, "run-1", registry, bias=1.0, returns=(5.0,) * 40)
        registry.set_aliases("cartpole", {ACTING: champion.version})
        register(folder, "run-2", registry, returns=(5.0,) * 40)
    with at_home(folder / "deciding", template_home):
        registry = Registry()
        champion = register_linear(folder / "one", CHAMPION, registry, [0.0, 1.0])
        registry.set_aliases("cartpole", {ACTING: champion.version})
        register_linear(folder / "two", CHALLENGER, registry, [0.0, 1.0])
    return folder


@pytest.fixture
def signed(homes: Path, loomrl_home: Path) -> Pair:
    return pair(homes / "signed", loomrl_home)


@pytest.fixture
def deciding(homes: Path, loomrl_home: Path) -> Pair:
    return pair(homes / "deciding", loomrl_home)


def pair(source: Path, home: Path) -> Pair:
    copy_home(source, home)
    registry = Registry()
    champion, challenger = registry.versions("cartpole")
    return registry, champion, challenger


def judged(pair: Pair, version: PolicyVersion, name: str, **rules: Any) -> tuple[str, Claim]:
    registry, champion, _ = pair
    decision = review(
        registry, config(require_not_worse=False, **rules), version, shadow_report(version.version, champion.version)
    )
    return decision.decision, next(claim for claim in decision.rules if claim.id == name)


def play_both(champion_steps: int, challenger_steps: int, number: int) -> None:
    """One episode each of agents that a split dealt to both."""
    log = AuditLog("cartpole")
    for agent, version in enumerate(dealt(np.random.default_rng(1), number)):
        told = {"experiment": "e", "dealt": version, "shares": {"1": 0.5, "2": 0.5}}
        steps = champion_steps if version == "1" else challenger_steps
        play(log, "one", [0.0] * steps, f"agent {agent}", version=version, **told)


def test_without_the_sections_all_is_as_it_was(signed: Pair) -> None:
    _, champion, challenger = signed
    for name in ("compared_live", "off_policy"):
        decision, claim = judged(signed, challenger, name)
        assert (decision, claim.verdict, claim.mandatory) == ("promoted", Verdict.PROVED, False)
    rules = config().promotion.model_dump(mode="json")
    assert rules.keys().isdisjoint({"comparison", "off_policy"})
    with_rule = inputs_digest(config(comparison={}), challenger, champion)
    assert inputs_digest(config(), challenger, champion) != with_rule


@pytest.mark.parametrize(
    ("steps", "number", "verdict", "decision"),
    [
        (5, 300, Verdict.SUPPORTED, "promoted"),
        (5, 20, Verdict.UNDECIDED, "refused"),
        (1, 300, Verdict.REFUTED, "refused"),
    ],
)
def test_what_both_did_live_counts(signed: Pair, steps: int, number: int, verdict: Verdict, decision: str) -> None:
    play_both(5, steps, number)
    found, claim = judged(signed, signed[2], "compared_live", comparison={}, max_regression=0.5)
    assert (found, claim.verdict, claim.num_samples) == (decision, verdict, number)
    assert "reward differs by" in claim.statement
    assert "allowed -0.5" in claim.statement


def test_what_lies_beyond_the_range_promotes_nobody_whom_it_favours(signed: Pair) -> None:
    """The champion earns 7 live, and 5 at most in its evaluation: counted as 5 it is no better than the challenger."""
    play_both(7, 5, 300)
    decision, claim = judged(signed, signed[2], "compared_live", comparison={}, max_regression=0.5)
    assert (decision, claim.verdict) == ("refused", Verdict.UNDECIDED)
    assert (
        "the value lies beyond 0 to 5, where it counts in the challenger's favour: widen the range" in claim.statement
    )
    wide = {"return_range": [0.0, 7.0]}
    decision, claim = judged(signed, signed[2], "compared_live", comparison=wide, max_regression=0.5)
    assert (decision, claim.verdict) == ("refused", Verdict.REFUTED)
    assert "widen" not in claim.statement


def test_a_challenger_that_was_never_live_is_undecided(signed: Pair) -> None:
    decision, claim = judged(signed, signed[2], "compared_live", comparison={})
    assert (decision, claim.verdict) == ("refused", Verdict.UNDECIDED)
    assert "nothing is claimed: no experiment dealt agents to both" in claim.statement


def test_a_revision_that_comes_during_the_trial_begins_without_evidence(signed: Pair, tmp_path: Path) -> None:
    play_both(5, 5, 300)
    assert judged(signed, signed[2], "compared_live", comparison={}, max_regression=0.5)[0] == "promoted"
    revision = register(tmp_path, "run-3", signed[0], bias=2.0, returns=(5.0,) * 40)
    decision, claim = judged(signed, revision, "compared_live", comparison={}, max_regression=0.5)
    assert (decision, claim.verdict, claim.num_samples) == ("refused", Verdict.UNDECIDED, None)


def test_decisions_without_feedback_promote_nobody(signed: Pair) -> None:
    log = AuditLog("cartpole")
    for number in range(600):
        decide(log, "a", f"{number}", [0.0] * 4, version="12"[number % 2])
    decision, claim = judged(signed, signed[2], "compared_live", comparison={}, max_regression=0.5)
    assert (decision, claim.verdict) == ("refused", Verdict.UNDECIDED)
    assert "nothing is claimed: no experiment dealt agents to both" in claim.statement


def test_the_champion_itself_needs_no_comparison(signed: Pair) -> None:
    decision, claim = judged(signed, signed[1], "compared_live", comparison={}, off_policy={})
    assert claim.statement == "the version is the champion itself"
    assert claim.verdict is Verdict.PROVED


@pytest.mark.parametrize(
    ("rule", "verdict"),
    [
        ({"min_improvement": -0.05}, Verdict.SUPPORTED),
        ({"min_improvement": 0.1}, Verdict.UNDECIDED),
        ({"min_improvement": 0.9, "min_propensity": 0.25}, Verdict.REFUTED),
        ({"min_effective_sample_size": 5_000.0}, Verdict.UNDECIDED),
    ],
)
def test_what_the_log_says_counts(deciding: Pair, rule: dict[str, Any], verdict: Verdict) -> None:
    log = Bandit().log(np.random.default_rng(1), 2_000, partial(greedy, weights=CHAMPION, epsilon=0.5))
    write_log(AuditLog("cartpole"), log)
    _, claim = judged(deciding, deciding[2], "off_policy", off_policy=rule)
    assert claim.verdict is verdict, claim.statement
    refused = "min_effective_sample_size" in rule
    assert ("the log does not tell" in claim.statement) == refused
    assert (claim.bound is None) == refused


def test_a_log_that_is_known_to_be_behind_tells_nothing(deciding: Pair) -> None:
    log = Bandit().log(np.random.default_rng(1), 2_000, partial(greedy, weights=CHAMPION, epsilon=0.5))
    write_log(AuditLog("cartpole"), log)
    with LoomDB.open() as db:
        anchor(db, ChainHead("cartpole/server-0", "000001", 1_000_000, "0" * 64))
    decision, claim = judged(deciding, deciding[2], "off_policy", off_policy={"min_improvement": -0.05})
    assert (decision, claim.verdict, claim.bound) == ("refused", Verdict.UNDECIDED, None)
    assert "the log does not tell: " in claim.statement
    assert "has written 1000000" in claim.statement


def test_a_log_without_exploration_tells_nothing(deciding: Pair) -> None:
    log = Bandit().log(np.random.default_rng(1), 50, partial(greedy, weights=CHAMPION))
    for one in log:
        one.explored = [False]
    write_log(AuditLog("cartpole"), log)
    decision, claim = judged(deciding, deciding[2], "off_policy", off_policy={})
    assert (decision, claim.verdict) == ("refused", Verdict.UNDECIDED)
    assert "decided without exploration" in claim.statement
