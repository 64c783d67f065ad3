"""Verdicts against numbers worked out by hand."""

from typing import Any

import pytest
from policy_versions import config

from loomrl.config import PolicyConfig
from loomrl.monitoring.judge import judge
from loomrl.monitoring.window import LiveEpisode
from loomrl.types import Claim, Interval, Verdict

EVALUATED = Interval(estimate=500.0, low=490.0, high=505.0, confidence=0.95, method="bootstrap")


def settings(per: str = "episode", max_probability: float = 0.05, **more: Any) -> PolicyConfig:
    pole = {"name": "pole", "quantity": "observation[2]", "low": -0.2, "high": 0.2}
    unseen = {"name": "reward_is_fair", "quantity": "reward", "low": 0.0}
    constraints = [{**pole, "per": per, "max_probability": max_probability}, unseen]
    document = config().model_dump(mode="json") | {"monitoring": {"min_episodes": 10}}
    return PolicyConfig.model_validate(document | {"safety": {"constraints": constraints}} | more)


def episode(*angles: float | None, value: float | None = 1.0, total: float | None = None) -> LiveEpisode:
    made = LiveEpisode(cut=False, versions={"1"}, ended=total is not None)
    made.observations = [[0.0, 0.0, angle, 0.0] for angle in angles]
    made.actions, made.values = [1] * len(angles), [value] * len(angles)
    made.rewards = {str(step): None if total is None else total / len(angles) for step in range(len(angles))}
    return made


def by_id(claims: list[Claim]) -> dict[str, Claim]:
    return {claim.id: claim for claim in claims}


def test_episodes_count_not_decisions() -> None:
    # 1,000 violating decisions of one episode are one failure in 20: 1 - 0.95 ** (1 / 20) = 0.00256
    episodes = [episode(*[0.3] * 1_000), *[episode(0.0)] * 19]
    claim = by_id(judge(settings(), episodes, EVALUATED))["limits.pole"]
    assert claim.bound is not None
    assert claim.bound.measured == pytest.approx(1 - 0.95 ** (1 / 20))
    assert (claim.verdict, claim.num_samples) == (Verdict.UNDECIDED, 20)


def test_a_limit_is_refuted_exactly_where_the_lower_bound_passes_it() -> None:
    # three of 20 violate: P(X >= 3 | p) = 0.05 at p = 0.0422
    episodes = [*[episode(0.0, -0.3)] * 3, *[episode(0.0)] * 17]
    for allowed, verdict in ((0.043, Verdict.UNDECIDED), (0.042, Verdict.REFUTED)):
        assert by_id(judge(settings(max_probability=allowed), episodes, EVALUATED))["limits.pole"].verdict is verdict


def test_a_limit_per_step_is_judged_by_the_share_of_steps() -> None:
    share = [episode(*[0.3] * 5, *[0.0] * 5)] * 30
    refuted = by_id(judge(settings("step", 0.2), share, EVALUATED))["limits.pole"]
    held = by_id(judge(settings("step", 0.5), share, EVALUATED))["limits.pole"]
    assert (refuted.verdict, held.verdict) == (Verdict.REFUTED, Verdict.UNDECIDED)


def test_few_episodes_decide_nothing_but_a_number_that_is_not_finite() -> None:
    claims = judge(settings(), [episode(0.3)] * 9, EVALUATED)
    assert [(claim.id, claim.verdict) for claim in claims] == [("finiteness", Verdict.SUPPORTED)]
    for broken in (episode(None, 0.0), episode(0.0, value=None)):
        assert judge(settings(), [broken], EVALUATED)[0].verdict is Verdict.REFUTED
    assert judge(settings(), [], EVALUATED) == []


@pytest.mark.parametrize(
    ("mean", "verdict"), [(500.0, Verdict.SUPPORTED), (466.0, Verdict.UNDECIDED), (455.0, Verdict.REFUTED)]
)
def test_the_return_is_compared_interval_with_interval(mean: float, verdict: Verdict) -> None:
    # 5 % of 500 may be missing: below 490 - 25 = 465 the policy has degraded
    episodes = [episode(0.0, total=mean + offset) for offset in (-10.0, 10.0) * 12]
    claim = by_id(judge(settings(), episodes, EVALUATED))["return"]
    assert claim.bound is not None
    assert (claim.verdict, claim.bound.limit) == (verdict, 465.0)
    assert "return" not in by_id(judge(settings(), episodes[:9], EVALUATED))
