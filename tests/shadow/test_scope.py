"""Every claim of the shadow stage says what it rests on, how far that reaches, and what would make it false."""

from typing import Any

import pytest

from loomrl.shadow.claims import judge, passes
from loomrl.shadow.comparison import ShadowComparison
from loomrl.shadow.config import ShadowConfig
from loomrl.shadow.scope import scope_of
from loomrl.types import (
    Claim,
    Consequences,
    Interval,
    LabelKind,
    LimitFollowed,
    Noisy,
    Travel,
    Verdict,
    WholeEpisodes,
)

LIMITS = ShadowConfig(min_agreement=0.9, max_action_distance=0.2, max_value_drop=1.0)
DECISIONS = {
    *("min_decisions", "challenger_errors", "latency_p99", "latency_challenger_p99", "would_be_violations"),
    *("bitwise_equal", "not_contrary", "agreement", "action_distance", "value_drop"),
}
FOLLOWING = {"pole", "limits.noise", "return", "disturbed", "whole", "travel", "noise"}


def interval(estimate: float) -> Interval:
    return Interval(estimate=estimate, low=estimate - 0.01, high=estimate + 0.01, confidence=0.95, method="t")


def compared(**changes: Any) -> ShadowComparison:
    """Every number that a comparison can hold."""
    values: dict[str, Any] = {
        "has_champion": True,
        "confidence": 0.95,
        "num_decisions": 4_321,
        "num_episodes": 23,
        "num_units": 17,
        "num_errors": 2,
        "agreement": interval(0.95),
        "chance_agreement": 0.5,
        "action_distance": interval(0.1),
        "value_difference": interval(0.0),
        "would_be_violations": interval(0.0),
        "latency_seconds": {"p99": 0.01, "challenger_p99": 0.01},
        "bitwise_equal": True,
    }
    return ShadowComparison(**values | changes)


def followed(**changes: Any) -> Consequences:
    """Everything that can follow, with a limit that is called like another claim."""
    limits = [
        LimitFollowed(name=name, per="episode", limit=0.01, num_violating=0, rate=0.0, upper=0.009, lower=0.0)
        for name in ("pole", "noise")
    ]
    whole = WholeEpisodes(
        num_pairs=611,
        challenger_mean=499.0,
        champion_mean=500.0,
        low=-2.0,
        high=1.0,
        margin=25.0,
        verdict=Verdict.SUPPORTED,
        demanded=True,
        seed=1,
        lost=3.0,
    )
    values: dict[str, Any] = {
        "examined": True,
        "num_episodes": 512,
        "num_decisions": 256_000,
        "num_disagreements": 71,
        "num_continued": 41,
        "limits": limits,
        "return_difference": interval(0.0),
        "return_scale": 400.0,
        "burst_steps": 6,
        "num_disturbed": 480,
        "whole": whole,
        "travel": Travel(challenger=0.1, champion=0.1, excess=interval(-0.1), allowed=0.2, seed=1),
        "noisy": Noisy(deviations=0.4, withstood=0.8, num_episodes=239),
    }
    return Consequences(**values | changes)


def by_name(comparison: ShadowComparison, found: Consequences) -> dict[str, Claim]:
    claims = judge(LIMITS, comparison, found)
    return {claim.id.removeprefix("shadow.").removeprefix("consequences."): claim for claim in claims}


def said(claim: Claim) -> tuple[str, str, str]:
    return claim.examined, claim.not_established, claim.false_if


@pytest.mark.parametrize(
    ("comparison", "found"),
    [
        pytest.param(compared(), followed(), id="everything"),
        pytest.param(
            compared(has_champion=False, agreement=None, action_distance=None, value_difference=None),
            followed(return_difference=None, whole=None, travel=None, noisy=None),
            id="no champion",
        ),
        pytest.param(
            compared(num_units=1, action_distance=None, value_difference=None, would_be_violations=None),
            followed(limits=[], num_disturbed=0, why_not_disturbed="too short", noisy=Noisy(why_not="0 asked")),
            id="too little",
        ),
        pytest.param(compared(), Consequences(examined=False, why_not="no package"), id="not examined"),
    ],
)
def test_every_claim_says_three_different_things(comparison: ShadowComparison, found: Consequences) -> None:
    for claim in by_name(comparison, found).values():
        assert all(len(text) > 10 for text in said(claim)), claim
        assert len(set(said(claim))) == 3


def test_all_claims_that_shadow_can_make_are_among_these_with_their_counts() -> None:
    claims = by_name(compared(), followed())
    assert set(by_name(compared(has_champion=False), followed())) | set(claims) == DECISIONS | FOLLOWING
    assert "4321 decisions in 23 episodes, 17 independent units" in claims["agreement"].examined
    assert "below 0.9" in claims["agreement"].false_if
    assert "4321 mirrored requests with an answer and 2 without" in claims["challenger_errors"].examined
    for name in ("pole", "limits.noise", "return"):
        assert "71 disagreements in 256000 decisions, 41 of them followed" in claims[name].examined
    assert "480 episodes in which another action was held for 6 steps" in claims["disturbed"].examined
    assert "611 pairs" in claims["whole"].examined
    assert "below -25" in claims["whole"].false_if
    assert "239 episodes" in claims["noise"].examined
    assert "0.4 deviations" in claims["noise"].examined


def test_what_cannot_be_false_or_was_not_examined_rests_on_nothing() -> None:
    nothing = Consequences(examined=False, why_not="no package")
    alone = by_name(compared(has_champion=False, would_be_violations=None), nothing)
    for name, why in {
        "challenger_errors": "no request is mirrored",
        "would_be_violations": "no limit on actions is declared",
        "shadow.consequences": "no package",
    }.items():
        claim = alone.get(name) or alone["consequences"]
        assert claim.examined.startswith("nothing: ")
        assert why in claim.examined
    assert by_name(compared(), followed(limits=[]))["limits"].examined.startswith("nothing: ")


def test_where_the_versions_share_no_action_agreement_by_chance_cannot_be_missed() -> None:
    claim = by_name(compared(agreement=interval(0.0), chance_agreement=0.0), followed())["not_contrary"]
    assert claim.label is not None
    assert claim.label.kind is LabelKind.CANNOT_BE_FALSE
    assert claim.false_if.startswith("nothing: ")
    assert "does not act against" not in claim.statement
    assert by_name(compared(), followed())["not_contrary"].label is None


def test_a_limit_of_steps_is_about_the_share_of_them_beyond_the_champions() -> None:
    limit = followed().limits[0].model_copy(update={"per": "step"})
    claim = by_name(compared(), followed(limits=[limit]))["pole"]
    assert "only the challenger" not in claim.false_if
    assert "share of steps beyond the champion's" in claim.false_if
    assert "where the champion kept it" not in claim.statement
    assert "more of the steps of an episode than the champion" in claim.statement
    assert "more often than by the champion" in claim.finding


def test_whole_limits_are_shown_exactly() -> None:
    settings = ShadowConfig(min_decisions=1_234_567, max_value_drop=2_345_678, max_action_distance=0.25)
    claims = {claim.id: claim for claim in judge(settings, compared(value_difference=None), followed())}
    assert "fewer than 1234567 of them" in claims["shadow.min_decisions"].false_if
    assert "at most 2345678 less" in claims["shadow.value_drop"].statement
    assert "within 0.25 of" in claims["shadow.action_distance"].statement


def test_where_nothing_was_served_nothing_is_equal_or_different() -> None:
    nothing = compared(has_champion=False, num_decisions=0, num_episodes=0, bitwise_equal=None, agreement=None)
    claim = by_name(nothing, followed())["bitwise_equal"]
    assert (claim.verdict, claim.mandatory, claim.bound) == (Verdict.UNDECIDED, True, None)
    assert claim.examined == "nothing: no action was served"
    assert not passes([claim])


def test_pairs_of_choices_that_never_differ_are_one_episode_each() -> None:
    whole = by_name(compared(), followed(num_disagreements=0, num_continued=0, travel=None))["whole"]
    assert "611 pairs" in whole.examined
    assert "one episode stands for both" in whole.examined
    assert "stands for both" not in by_name(compared(), followed(num_disagreements=0))["whole"].examined


def test_a_claim_that_nobody_knows_is_an_error() -> None:
    unknown = Claim(
        id="shadow.consequences.lap_time",
        stage="shadow",
        statement="it is fast",
        mandatory=True,
        method="a clock",
        verdict=Verdict.SUPPORTED,
    )
    with pytest.raises(KeyError, match=r"nothing says what shadow\.consequences\.lap_time rests on"):
        scope_of(unknown, compared(), followed())
