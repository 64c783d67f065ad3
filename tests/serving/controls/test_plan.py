"""The plan's split: whom it deals what, and who changes hands when it changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from loomrl.serving.controls.plan import Plan, SplitAssignment, point

AGENTS = [f"agent-{number}" for number in range(20_000)]
BY = {"person": "Ada", "reason": "test"}


def plan(former: Plan | None = None, experiment: str | None = "e", **split: float) -> Plan:
    shares = {version.removeprefix("v"): fraction for version, fraction in split.items()}
    return Plan(split=shares, experiment=experiment, **BY).dealt_after(former or Plan(**BY))


def dealt(found: Plan, agents: list[str] = AGENTS) -> dict[str, str | None]:
    deal = SplitAssignment("cartpole", found)
    return {agent: deal.version_of(agent) for agent in agents}


def test_each_version_gets_its_share_of_the_agents() -> None:
    fractions = {"2": 0.2, "3": 0.05, None: 0.75}
    counts = list(dealt(plan(v2=0.2, v3=0.05)).values())
    chi_square = sum(
        (counts.count(version) - fraction * len(AGENTS)) ** 2 / (fraction * len(AGENTS))
        for version, fraction in fractions.items()
    )
    assert chi_square < 18.4  # two degrees of freedom: beyond it once in 10,000 experiments


def test_an_agents_place_is_the_same_everywhere_and_for_ever() -> None:
    assert [point("cartpole", "e", agent) for agent in ("a", "b", "Zoë")] == [335_158, 725_572, 363_579]


def test_another_experiment_deals_anew() -> None:
    one, other = (dealt(plan(experiment=name, v2=0.5)) for name in "ab")
    moved = sum(one[agent] != other[agent] for agent in AGENTS) / len(AGENTS)
    assert 0.45 < moved < 0.55


def test_a_split_without_a_name_gets_one_and_keeps_it() -> None:
    first = plan(experiment=None, v2=0.1)
    assert first.experiment
    assert plan(first, experiment=None, v2=0.2).experiment == first.experiment
    ended = Plan(experiment="e", **BY).dealt_after(first)
    assert (ended.experiment, ended.slices) == (None, [])
    assert plan(ended, experiment=None, v2=0.1).experiment != first.experiment


THOUSANDTHS = st.dictionaries(st.sampled_from("234"), st.integers(1, 300), min_size=1)


@given(st.lists(THOUSANDTHS, min_size=2, max_size=4))
def test_only_agents_that_a_share_gains_or_loses_change_hands(steps: list[dict[str, int]]) -> None:
    former, before = Plan(**BY), owners_of(Plan(**BY))
    for shares in steps:
        split = {version: share / 1_000 for version, share in shares.items()}
        former = Plan(split=split, experiment="e", **BY).dealt_after(former)
        after = owners_of(former)
        for version in "234":
            moves = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
            assert not (version in {old for old, _ in moves} and version in {new for _, new in moves})
            assert after.count(version) == shares.get(version, 0)
        before = after


def owners_of(found: Plan) -> list[str | None]:
    """Whose every thousandth point is."""
    owners: list[str | None] = [None] * 1_000
    for owned in found.slices:
        assert owned.start % 1_000 == owned.end % 1_000 == 0
        owners[owned.start // 1_000 : owned.end // 1_000] = [owned.version] * ((owned.end - owned.start) // 1_000)
    return owners


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"2": 0.0}, "from 0.000001 to 1"),
        ({"2": -0.1}, "from 0.000001 to 1"),
        ({"2": 1.5}, "from 0.000001 to 1"),
        ({"2": float("nan")}, "from 0.000001 to 1"),
        ({"2": -1.7976931348623157e308}, "from 0.000001 to 1"),  # times a million it is infinite
        ({"2": 0.6, "3": 0.6}, "add up to 1.2"),
    ],
)
def test_shares_that_are_none(split: dict[str, float], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Plan(split=split, **BY)


@pytest.mark.parametrize("fallback", [{}, {"action": 0, "version": "2"}])
def test_a_fallback_is_one_thing(fallback: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="either an `action` or a `version`"):
        Plan(fallback=fallback, **BY)
