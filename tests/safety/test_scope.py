"""Every claim says what it rests on; what repeats another, cannot be false or is a record is shown and not counted."""

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from loomrl.safety.case.decision import decide
from loomrl.safety.case.document import check_case
from loomrl.safety.case.tally import tally
from loomrl.safety.check import Check, CheckConfig, Context, Demand, Scope, scope_of
from loomrl.safety.config import ConstraintConfig, SafetyConfig
from loomrl.safety.gate import _with_sound_labels
from loomrl.safety.probing import repeats
from loomrl.safety.registry import find_checks
from loomrl.system.files import read_json
from loomrl.types import Bound, Claim, ClaimLabel, Episode, Evidence, LabelKind, SafetyCase, Verdict
from tests.support.trained import Policy, examine

STATISTICAL, FALSIFICATION = "statistical limits", "falsification"
# The limits at which CartPole itself ends an episode.
CART = ConstraintConfig(name="cart", quantity="observation[0]", low=-2.4, high=2.4, max_probability=0.05)
POLE = ConstraintConfig(name="pole", quantity="observation[2]", low=-0.2095, high=0.2095, max_probability=0.05)


def made(name: str, **values: Any) -> Claim:
    said = {
        "stage": STATISTICAL,
        "statement": f"{name} is so",
        "mandatory": True,
        "method": "a search",
        "num_samples": 7,
    }
    return Claim(**{"id": name, "verdict": Verdict.SUPPORTED, "finding": "seen", **said, **values})


def label(kind: LabelKind) -> ClaimLabel:
    return ClaimLabel(kind=kind, reason="it is so")


# --- what a claim rests on ---


@pytest.mark.parametrize("check", find_checks().values(), ids=lambda check: check.NAME)
@pytest.mark.parametrize("part", ["", ".training", ".objective", ".recovery", ".lone_choices", ".attacks", ".x.reward"])
def test_every_check_says_what_its_claims_rest_on(check: Check, part: str) -> None:
    """For each kind of claim that any check makes."""
    bound = Bound(kind="count", measured=0.0, limit=0.01)
    scope = scope_of(check, check.Config(), made(f"{check.NAME}{part}", bound=bound))
    assert all(len(text) > 10 for text in scope), scope
    assert "does not say" not in " ".join(scope)
    assert len(set(scope)) == 3


def test_a_check_that_says_nothing_is_said_to_say_nothing() -> None:
    silent: Any = SimpleNamespace(NAME="silent")
    scope = scope_of(silent, CheckConfig(), made("silent"))
    assert scope == Scope(
        "7 samples: a search", "the check silent does not say", "the check silent does not say"
    )  # fmt: skip


@pytest.mark.parametrize("check", find_checks().values(), ids=lambda check: check.NAME)
def test_what_was_not_examined_rests_on_nothing(check: Check) -> None:
    missing: Any = None
    context = Context(*[missing] * 12).of(check, check.Config())
    claim = context.undecided("it is so", "the policy cannot be read")
    assert scope_of(check, check.Config(), claim).examined == "nothing: the policy cannot be read"


# --- what counts ---


def test_only_claims_without_a_label_count() -> None:
    claims = [made("a"), made("b", verdict=Verdict.REFUTED), made("c", label=label(LabelKind.RECORD))]
    claims += [made(name, label=label(LabelKind.REPEATS)) for name in "de"]
    assert str(tally(claims)) == "1 of 2 claims hold (2 repeat another, 1 compares records)"
    assert str(tally(claims[:2])) == "1 of 2 claims hold"


@pytest.mark.parametrize("verdict", [Verdict.REFUTED, Verdict.UNDECIDED, Verdict.WAIVED])
@pytest.mark.parametrize("kind", [kind for kind in LabelKind if kind is not LabelKind.REPEATS])
def test_what_does_not_hold_counts_whatever_its_label_says(kind: LabelKind, verdict: Verdict) -> None:
    """A gate that it blocks does not say that all hold."""
    claims = [made("a"), made("b", verdict=verdict, label=label(kind))]
    assert str(tally(claims)) == "1 of 2 claims hold"


@pytest.mark.parametrize("kind", LabelKind)
def test_a_labelled_claim_that_is_refuted_blocks(kind: LabelKind) -> None:
    refuted = made("b", verdict=Verdict.REFUTED, label=label(kind))
    decision = decide([made("a"), refuted])
    assert (decision.passed, decision.blocking) == (False, ["b"])


def test_what_cannot_be_false_says_nothing_about_behaviour() -> None:
    assert decide([made("a", label=label(LabelKind.REPEATS))]).passed
    decision = decide([made("a", label=label(LabelKind.CANNOT_BE_FALSE))])
    assert not decision.passed
    assert "the gate is empty" in decision.reason
    assert "; a says nothing: see why it is not counted" in decision.reason
    decision = decide([made("a", label=label(LabelKind.NEVER_BROKEN))])
    assert decision.passed
    assert "refuse nothing" in decision.reason
    assert "refuse nothing" not in decide([made("a", label=label(LabelKind.NEVER_BROKEN)), made("b")]).reason


def test_a_decision_says_in_which_episodes_no_limit_was_broken() -> None:
    """A search may have broken it in others, and a claim that blocks nothing may say so."""
    searched = made("drift", stage=FALSIFICATION, mandatory=False, verdict=Verdict.REFUTED, finding="breaks a")
    decision = decide([made("a", label=label(LabelKind.NEVER_BROKEN)), searched])
    assert decision.passed
    assert "ever seen broken" not in decision.reason
    assert "nothing that was tried, whoever acted, makes one of these claims false" in decision.reason


# --- which claims are about one event ---


def episode(values: list[float], terminated: bool, reward: float = 1.0) -> Episode:
    obs = np.array([[value, -value] for value in [0.0, *values]])
    length = len(values)
    rewards = np.full(length, reward)
    return Episode(0, obs[:-1], np.zeros(length), rewards, obs[1:], terminated, truncated=not terminated)


def labelled(
    monkeypatch: pytest.MonkeyPatch, limits: list[ConstraintConfig], episodes: list[Episode], *swayed: Episode
) -> dict[str, str | None]:
    """The labels' claims, of claims about these limits in these episodes of the policy and the swayed ones."""
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: list(swayed))
    context: Any = SimpleNamespace(episodes=episodes)
    claims = [made(one.name) for one in limits]
    found = repeats.label_limits(claims, {one.name: one for one in limits}, {}, {}, context)
    return {one.id: None if one.label is None else one.label.claim for one in found}


def high(name: str, index: int = 0, limit: float = 1.0, share: float = 0.01) -> ConstraintConfig:
    return ConstraintConfig(name=name, quantity=f"observation[{index}]", high=limit, max_probability=share)


CALM, LEFT, RIGHT = episode([0.0] * 9, False), episode([0.5, 1.5], True), episode([-0.5, -1.0, -1.5], True)
FALLS = [LEFT, RIGHT] * 3


def test_limits_broken_at_the_same_steps_are_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    wobbling = episode([0.0, 1.5, 0.0, 1.2], False)
    loose = high("loose", share=0.05)
    tight = ConstraintConfig(name="tight", quantity="observation[1]", low=-1.1, max_probability=0.01)
    assert labelled(monkeypatch, [loose, tight], [CALM, *[wobbling] * 3]) == {"loose": "tight", "tight": None}
    apart = episode([0.0, 1.05], False)
    assert set(labelled(monkeypatch, [loose, tight], [CALM, apart, *[wobbling] * 3]).values()) == {None}
    tight = high("tight", limit=1.1)
    found = labelled(monkeypatch, [loose, tight], [CALM, *[wobbling] * 3])
    assert found == {"loose": None, "tight": None}, "of two limits on one quantity some value breaks the one alone"


def test_limits_nobody_breaks_are_not_taken_for_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert labelled(monkeypatch, [high("a"), high("b", 1)], [CALM] * 9) == {"a": None, "b": None}


def test_a_limit_that_nobody_can_break_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step earns 1, whoever acts; the pole is kept by the policy alone."""
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: [LEFT])
    context: Any = SimpleNamespace(episodes=[CALM] * 9)
    earning = ConstraintConfig(name="earning", quantity="reward", high=2.0, max_probability=0.01)
    costly = ConstraintConfig(name="costly", quantity="return", low=-5.0, max_probability=0.01)
    limits = {"earning": earning, "costly": costly, "pole": high("pole"), "refuted": high("refuted", limit=99.0)}
    claims = [made(name) for name in limits]
    claims[-1] = claims[-1].model_copy(update={"verdict": Verdict.REFUTED})  # in episodes that nobody else has
    found = {one.id: one.label for one in repeats.label_limits(claims, limits, {}, {}, context)}
    assert found["pole"] is found["refuted"] is None
    for label in (found["earning"], found["costly"]):
        assert label is not None
        assert label.kind is LabelKind.NEVER_BROKEN
        assert "of 9 of the policy as it is and of 1 more" in label.reason


WOBBLING = episode([0.0, 1.5, 0.0, 0.0], False)


@pytest.mark.parametrize(
    ("own", "swayed", "is_counted"),
    [
        ([CALM, WOBBLING], [CALM], True),
        ([CALM], [WOBBLING, LEFT], True),
        ([CALM], [episode([0.0, 1.5], False)], True),  # cut off there, and by no limit
        ([CALM], [CALM], False),
    ],
    ids=["own", "swayed", "cut off", "nobody"],
)
def test_a_limit_per_step_that_one_step_breaks_can_be_broken(
    monkeypatch: pytest.MonkeyPatch, own: list[Episode], swayed: list[Episode], is_counted: bool
) -> None:
    """However rarely: other actions than those that were tried may break it more often."""
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: swayed)
    limit = high("steps", share=0.6).model_copy(update={"per": "step"})
    context: Any = SimpleNamespace(episodes=own)
    (found,) = repeats.label_limits([made("steps")], {"steps": limit}, {}, {}, context)
    assert (found.label is None) is is_counted


def test_a_limit_per_step_that_further_episodes_break_can_be_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: [CALM])
    told = SimpleNamespace(read=lambda _: {"violating_values": [0.01]})
    context: Any = SimpleNamespace(episodes=[CALM], evidence=told)
    claim = made("steps", evidence=[Evidence(uri="steps.json", sha256="0" * 64)])
    limit = high("steps", share=0.6).model_copy(update={"per": "step"})
    (found,) = repeats.label_limits([claim], {"steps": limit}, {}, {}, context)
    assert found.label is None


def test_a_further_episode_that_breaks_a_limit_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told of by its share alone, so that it is not known whether to break the limit ended it."""
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: [LEFT, RIGHT])
    told = SimpleNamespace(read=lambda _: {"violating_values": [0.01], "violating_seeds": [77]})
    context: Any = SimpleNamespace(episodes=[CALM], evidence=told)
    claim = made("steps", evidence=[Evidence(uri="steps.json", sha256="0" * 64)])
    limit = high("steps", share=0.6).model_copy(update={"per": "step"})
    (found,) = repeats.label_limits([claim], {"steps": limit}, {}, {}, context)
    assert found.label is None


@pytest.mark.parametrize(("share", "kind"), [(0.4, None), (0.5, LabelKind.NEVER_BROKEN)])
def test_a_share_of_steps_that_no_episode_reaches_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, share: float, kind: LabelKind | None
) -> None:
    """Each episode ends at the first step that violates: of two steps one, of three one."""
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: [LEFT, RIGHT])
    context: Any = SimpleNamespace(episodes=[CALM] * 9)
    limit = high("steps", share=share).model_copy(update={"per": "step"})
    (found,) = repeats.label_limits([made("steps")], {"steps": limit}, {}, {}, context)
    assert (found.label and found.label.kind) == kind
    (found,) = repeats.label_limits([made("drift")], {}, {"drift": limit}, {}, context)
    assert found.label is None, "under a drift one step is enough"


def test_of_one_event_the_stricter_limit_counts_and_the_mandatory_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """An optional claim repeats no looser one, and a mandatory one repeats none that blocks nothing."""
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: FALLS)
    context: Any = SimpleNamespace(episodes=[CALM])
    limits = {"loose": high("loose", share=0.5), "strict": high("strict", 1), "other": high("other", 1, share=0.6)}
    claims = [made("loose"), made("strict", mandatory=False), made("other", mandatory=False)]
    found = repeats.label_limits(claims, limits, {}, {}, context)
    assert [one.label and one.label.claim for one in found] == [None, None, "strict"]
    found = repeats.label_limits([claims[0], made("strict"), claims[2]], limits, {}, {}, context)
    assert [one.label and one.label.claim for one in found] == ["strict", None, "strict"]


def test_limits_that_end_episodes_count_steps_and_episodes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pole that falls ends every episode, and is one step of each."""
    steps = high("steps", share=0.004).model_copy(update={"per": "step"})
    found = labelled(monkeypatch, [steps, high("a"), high("b", 1)], [CALM], *FALLS)
    assert found == {"steps": None, "a": None, "b": "a"}


def test_what_is_one_with_a_limit_that_ends_episodes_is_one_with_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash costs, earns less, and ends the episode: what it costs in all is broken at the same step."""
    crashes = [crash(num_steps) for num_steps in (2, 3, 4, 2, 3, 4)]
    safe = replace(CALM, info={"cost": np.zeros(9)})
    limits = [
        ConstraintConfig(name="sum", quantity="episode_cost", high=0.0, max_probability=0.01),
        ConstraintConfig(name="cost", quantity="cost", high=0.0, max_probability=0.01),
        high("off"),
    ]
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: [*crashes, *[safe] * 3])
    context: Any = SimpleNamespace(episodes=[safe])
    found = repeats.label_limits([made(one.name) for one in limits], {one.name: one for one in limits}, {}, {}, context)
    assert [one.label and one.label.claim for one in found] == [None, "sum", "sum"]


def crash(num_steps: int) -> Episode:
    ending = episode([0.0] * (num_steps - 1) + [1.5], True)
    return replace(ending, info={"cost": np.array([0.0] * (num_steps - 1) + [1.0])})


def test_under_a_disturbance_one_step_is_enough_whatever_a_limit_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So whoever keeps the nearer limit there keeps the farther one."""
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: [LEFT])
    context: Any = SimpleNamespace(episodes=[CALM])
    near = high("near", share=0.06)
    far = high("far", limit=1.2, share=0.01).model_copy(update={"per": "step"})
    disturbed = {f"{check}.{one.name}": one for check in ("drift", "attack") for one in (far, near)}
    found = repeats.label_limits([made(name) for name in disturbed], {}, disturbed, {}, context)
    assert [one.label and one.label.claim for one in found] == ["drift.near", None, "attack.near", None]
    limits = {"far": far, "near": near}
    found = repeats.label_limits([made(name) for name in limits], limits, {}, {}, context)
    assert [one.label and one.label.claim for one in found] == [None, None]


def test_a_claim_that_asks_for_no_more_than_another_is_not_counted() -> None:
    """Where both hold, come out alike, and the other one blocks as much."""
    demands = {"a": Demand(("x",), (1.0, 2.0)), "again": Demand(("x",), (1.0, 2.0))}
    demands |= {"b": Demand(("x",), (1.0, 1.0)), "c": Demand(("y",), (0.0, 0.0))}
    nothing: Any = SimpleNamespace(episodes=[])

    def counted(*claims: Claim) -> str:
        found = repeats.label_limits(claims, {}, {}, demands, nothing)
        return "".join(one.id for one in found if one.label is None)

    assert counted(made("a"), made("b"), made("c")) == "ac"
    assert counted(made("a"), made("again"), made("b")) == counted(made("b"), made("a"), made("again")) == "a"
    assert counted(made("b"), made("a")) == "a"
    assert counted(made("a", verdict=Verdict.REFUTED), made("b", verdict=Verdict.REFUTED)) == "ab"
    assert counted(made("a", verdict=Verdict.PROVED), made("b")) == "ab"
    assert counted(made("a", mandatory=False), made("b")) == "ab"


def test_limits_that_the_policy_itself_breaks_apart_are_several_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends the episodes in which others act; the return is one with the limit that is broken with it."""
    limits = [high("a"), high("b", 1), ConstraintConfig(name="lasting", quantity="return", low=9.0)]
    together = replace(LEFT, next_obs=np.array([[0.5, -0.5], [1.5, 1.5]]))
    one_event = {"a": None, "b": "a", "lasting": "a"}
    assert labelled(monkeypatch, limits, [CALM], *FALLS) == one_event
    assert labelled(monkeypatch, limits, [CALM, together], *FALLS) == one_event
    assert labelled(monkeypatch, limits, [CALM, LEFT], *FALLS) == {"a": None, "b": None, "lasting": "a"}
    assert labelled(monkeypatch, limits, [CALM, LEFT, RIGHT], *FALLS) == {"a": None, "b": None, "lasting": None}


def test_limits_that_further_episodes_break_apart_are_several_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: FALLS)
    limits = {"a": high("a"), "b": high("b", 1)}
    claims = [made(name, evidence=[Evidence(uri=f"{name}.json", sha256="0" * 64)]) for name in limits]

    def repeated(**seeds: list[int]) -> list[str | None]:
        told = SimpleNamespace(read=lambda one: {"violating_seeds": seeds[one.uri[0]]})
        context: Any = SimpleNamespace(episodes=[CALM], evidence=told)
        found = repeats.label_limits(claims, limits, {}, {}, context)
        return [None if one.label is None else one.label.claim for one in found]

    assert repeated(a=[8], b=[]) == [None, None]
    assert repeated(a=[8], b=[8]) == repeated(a=[], b=[]) == [None, "a"]


def test_limits_of_one_event_that_come_out_differently_both_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: FALLS)
    context: Any = SimpleNamespace(episodes=[CALM])
    limits = {"a": high("a"), "b": high("b", 1)}
    claims = [made("a"), made("b", verdict=Verdict.REFUTED)]
    found = repeats.label_limits(claims, limits, {}, {}, context)
    assert [one.label for one in found] == [None, None]
    assert str(tally(found)) == "1 of 2 claims hold"


def test_a_weak_limit_on_the_return_is_not_the_event_that_ends_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the shorter half of the episodes that the environment ends break it."""
    lasting = ConstraintConfig(name="lasting", quantity="return", low=3.0, max_probability=0.001)
    found = labelled(monkeypatch, [lasting, high("a"), high("b", 1)], [CALM], *FALLS, episode([-0.5, -1.5], True))
    assert found == {"lasting": None, "a": None, "b": "a"}


def test_a_limit_that_another_one_implies_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """No episode is needed to know it; one that is refuted implies nothing."""
    loose, tight, rarer = high("loose", limit=2.0, share=0.05), high("tight"), high("rarer", limit=2.0, share=0.001)
    assert labelled(monkeypatch, [loose, tight, rarer], [CALM]) == {"loose": "tight", "tight": None, "rarer": None}
    assert labelled(monkeypatch, [high("a"), high("b")], [CALM]) == {"a": None, "b": "a"}


@pytest.mark.parametrize(
    ("limit", "share", "repeated"),
    [(1.0, 0.01, "a"), (1.5, 0.02, "a"), (0.9, 0.02, None), (1.0, 0.009, None)],
    ids=["equal", "wider", "narrower", "rarer"],
)
def test_a_limit_per_step_is_implied_by_one_per_episode(
    monkeypatch: pytest.MonkeyPatch, limit: float, share: float, repeated: str | None
) -> None:
    """The share of steps that break a limit is at most one, and nothing in an episode that keeps it."""
    step = high("step", limit=limit, share=share).model_copy(update={"per": "step"})
    for order in ([high("a"), step], [step, high("a")]):
        assert labelled(monkeypatch, order, [CALM]) == {"a": None, "step": repeated}


@pytest.mark.parametrize("verdict", [Verdict.SUPPORTED, Verdict.REFUTED])
@pytest.mark.parametrize(("own", "other", "is_one"), [(0.0, 1.0, True), (-1.0, 1.0, False), (0.0, -1.0, False)])
def test_no_cost_at_any_step_is_no_cost_in_all_where_none_is_negative(
    monkeypatch: pytest.MonkeyPatch, verdict: Verdict, own: float, other: float, is_one: bool
) -> None:
    """In whatever of the steps of an episode it costs."""
    free, costly = (replace(CALM, info={"cost": np.array([0.0] * 4 + [cost] + [0.0] * 4)}) for cost in (own, other))
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: [costly] * 3 + [free] * 3)
    context: Any = SimpleNamespace(episodes=[free])
    limits = {
        "step": ConstraintConfig(name="step", quantity="cost", high=0.0),
        "sum": ConstraintConfig(name="sum", quantity="episode_cost", low=-3.0, high=0.0),
    }
    for order in (("step", "sum"), ("sum", "step")):
        found = repeats.label_limits([made(name, verdict=verdict) for name in order], limits, {}, {}, context)
        assert (found[1].label is not None and found[1].label.claim == order[0]) is is_one


def test_it_does_not_matter_in_which_order_limits_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of limits with one end each, the tightest counts."""
    limits = [
        ConstraintConfig(name=f"r{low}", quantity="return", low=low, max_probability=0.2) for low in (400, 475, 450)
    ]
    for order in (limits, limits[::-1]):
        assert labelled(monkeypatch, order, [CALM]) == {"r400": "r475", "r450": "r475", "r475": None}


def at_least(name: str, quantity: str, low: float, share: float = 0.2) -> ConstraintConfig:
    return ConstraintConfig(name=name, quantity=quantity, low=low, max_probability=share)


@pytest.mark.parametrize(("reward", "is_one"), [(1.0, True), (0.9, False)])
def test_a_return_is_the_length_where_every_step_earns_1(
    monkeypatch: pytest.MonkeyPatch, reward: float, is_one: bool
) -> None:
    """A shorter episode allowed more often asks for less, whichever of the two it is asked of."""
    limits = [at_least("length", "length", 400, share=0.01), at_least("return", "return", 300, share=0.02)]
    for order in (limits, limits[::-1]):
        found = labelled(monkeypatch, order, [CALM], episode([0.0, 0.0], True, reward))
        assert (found["return"] == "length") is is_one
        assert labelled(monkeypatch, order, [CALM])["return"] is None, "the policy's own episodes alone do not tell"


def test_where_every_step_costs_as_much_a_return_is_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """No less than -1.5 is no longer than 15 steps of -0.1."""
    calm = replace(CALM, reward=np.full_like(CALM.reward, -0.1))
    sooner = ConstraintConfig(name="sooner", quantity="return", low=-1.5, max_probability=0.1)
    later = ConstraintConfig(name="later", quantity="length", high=16, max_probability=0.1)
    earlier = ConstraintConfig(name="earlier", quantity="length", high=14, max_probability=0.1)
    other = episode([0.0] * 20, True, -0.1)
    found = labelled(monkeypatch, [later, sooner], [calm], other)
    assert (found["later"], found["sooner"]) == ("sooner", None)
    assert labelled(monkeypatch, [sooner, earlier], [calm], other)["sooner"] == "earlier"


def test_a_return_that_other_episodes_break_than_its_length_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve times -0.1 is less than -1.2, by rounding: the episode that breaks the limit is seen."""
    calm, other = replace(CALM, reward=np.full_like(CALM.reward, -0.1)), episode([0.0] * 12, True, -0.1)
    limit = ConstraintConfig(name="a", quantity="return", low=-1.2, max_probability=0.1)
    assert repeats._on_one_quantity({"a": limit}, [calm, other], costs_add_up=False) == {"a": limit}
    assert labelled(monkeypatch, [limit], [calm], other)["a"] is None


def test_a_quantity_by_another_name_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is not told at every step: what is told nothing of costs nothing, and is not known."""
    told, untold = (replace(CALM, info={"cost": np.array([0.0] * 8 + [cost])}) for cost in (0.5, np.nan))
    other = replace(told, info={"cost": np.ones(9)}, action=np.ones_like(CALM.action))
    limits = [
        ConstraintConfig(name="cost", quantity="cost", high=0.6),
        ConstraintConfig(name="info", quantity="info.cost", high=0.7),
        ConstraintConfig(name="action", quantity="action", high=0.6),
        ConstraintConfig(name="first", quantity="action[0]", high=0.7),
    ]
    found = labelled(monkeypatch, limits, [told], other)
    assert (found["info"], found["first"]) == ("cost", "action")
    assert repeats._by_one_name({"info": limits[1]}, [untold])["info"].quantity == "info.cost"


def test_a_limit_on_all_costs_is_one_on_each_and_none_at_any_step_is_none_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where costs add up, whatever steps were seen to cost; of two the stricter counts, in any order."""
    costly = replace(CALM, info={"cost": np.array([0.0] * 4 + [1.0] + [0.0] * 4)})
    free = replace(CALM, info={"cost": np.zeros(9)})
    swayed = [costly] * 3 + [free] * 3

    def of(quantity: str, high: float) -> ConstraintConfig:
        return ConstraintConfig(name=f"{quantity}_{10 * high:.0f}", quantity=quantity, high=high)

    for strict, loose in (
        (of("cost", 0.0), of("cost", 0.9)),
        (of("cost", 0.0), of("episode_cost", 0.9)),
        (of("episode_cost", 0.0), of("cost", 0.9)),
        (of("episode_cost", 0.8), of("cost", 0.9)),
    ):
        for order in ([strict, loose], [loose, strict]):
            assert labelled(monkeypatch, order, [free], *swayed) == {strict.name: None, loose.name: strict.name}
    each, total = of("cost", 0.5), of("episode_cost", 0.9)
    assert set(labelled(monkeypatch, [each, total], [free], *swayed).values()) == {None}


@pytest.mark.parametrize(
    ("limits", "num_counted"),
    [
        ([at_least("r", "return", 5, 0.1), at_least("return", "return", 5), at_least("length", "length", 5)], 1),
        ([at_least("r", "return", 4.5), at_least("return", "return", 5), at_least("length", "length", 5)], 1),
        ([at_least("r", "return", 4.5, 0.1), at_least("return", "return", 5), at_least("length", "length", 5)], 2),
    ],
    ids=["equal", "implied", "stricter"],
)
def test_one_event_is_counted_once_in_any_order(
    monkeypatch: pytest.MonkeyPatch, limits: list[ConstraintConfig], num_counted: int
) -> None:
    """Each step earns 1, so that the return is the length; of two returns between 4 and 5 no episode has either."""
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: [LEFT] * 4 + [CALM] * 4)
    context: Any = SimpleNamespace(episodes=[CALM] * 9)
    by_name = {one.name: one for one in limits}
    for order in permutations(by_name):
        found = repeats.label_limits([made(name) for name in order], by_name, {}, {}, context)
        assert sum(one.label is None for one in found) == num_counted, order


@pytest.mark.parametrize("others", [[CALM] * 9, []], ids=["some", "all"])
def test_the_same_limit_twice_is_one_event_however_often_it_is_broken(
    monkeypatch: pytest.MonkeyPatch, others: list[Episode]
) -> None:
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: [])
    context: Any = SimpleNamespace(episodes=[WOBBLING, *others])
    limits = {name: high(name) for name in "ab"}
    claims = [made(name, verdict=Verdict.REFUTED) for name in limits]
    found = repeats.label_limits(claims, limits, {}, {}, context)
    assert [one.label and one.label.claim for one in found] == [None, "a"]


def test_a_claim_that_is_undecided_takes_no_others_out_of_their_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: FALLS)
    context: Any = SimpleNamespace(episodes=[CALM])
    limits = {"strict": high("strict", share=0.001), "a": high("a", limit=0.9), "b": high("b", 1)}
    claims = [made("strict", verdict=Verdict.UNDECIDED), made("a"), made("b")]
    found = repeats.label_limits(claims, limits, {}, {}, context)
    assert [one.label and one.label.claim for one in found] == [None, None, "a"]


def test_steps_and_episodes_are_not_one_count(monkeypatch: pytest.MonkeyPatch) -> None:
    wobbling = episode([0.0, 1.5, 0.0, 1.2], False)
    steps = high("steps", share=0.5).model_copy(update={"per": "step"})
    found = labelled(monkeypatch, [high("episodes", share=0.9), steps], [CALM, *[wobbling] * 3])
    assert found == {"episodes": None, "steps": None}


def test_events_under_a_disturbance_are_known_without_claims_about_the_shared_episodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: FALLS)
    context: Any = SimpleNamespace(episodes=[CALM])
    disturbed = {"drift.a": high("a"), "drift.b": high("b", 1)}
    found = repeats.label_limits([made(name) for name in disturbed], {}, disturbed, {}, context)
    assert [one.label and one.label.claim for one in found] == [None, "drift.a"]


def test_a_check_s_label_stands_only_where_what_came_out_bears_it() -> None:
    sure, repeating = label(LabelKind.CANNOT_BE_FALSE), ClaimLabel(kind=LabelKind.REPEATS, reason="so", claim="other")

    def kept(claim: Claim, *others: Claim) -> bool:
        return _with_sound_labels([claim, *others])[0].label is not None

    assert kept(made("a", label=sure))
    assert not kept(made("a", label=sure, verdict=Verdict.REFUTED)), "what was seen false can be false"
    assert kept(made("a", label=repeating), made("other"))
    assert not kept(made("a", label=repeating))
    assert not kept(made("a", label=repeating), made("other", verdict=Verdict.REFUTED))
    assert not kept(made("a", label=repeating), made("other", mandatory=False))


def test_what_a_claim_repeats_is_one_that_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing makes that false, nothing makes the other one false."""
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: FALLS)
    context: Any = SimpleNamespace(episodes=[CALM])
    limits = {"wide": high("wide", limit=1.05), "a": high("a"), "b": high("b", 1, share=0.001)}
    earning = {name: ConstraintConfig(name=name, quantity="reward", high=float(name[1])) for name in ("r3", "r2")}
    claims = [made(name) for name in (*limits, *earning)]
    for order in (claims, claims[::-1]):
        found = {one.id: one.label for one in repeats.label_limits(order, limits | earning, {}, {}, context)}
        assert found["b"] is None
        assert [found[name].claim for name in ("wide", "a")] == ["b", "b"]  # type: ignore[union-attr]
        assert {found[name].kind for name in earning} == {LabelKind.NEVER_BROKEN}  # type: ignore[union-attr]
        assert found["r3"].reason.startswith("as r2: none broke its limit")  # type: ignore[union-attr]


@pytest.mark.parametrize("num_kept", [0, 4])
def test_sums_are_one_event_only_where_other_actions_tell(monkeypatch: pytest.MonkeyPatch, num_kept: int) -> None:
    """That the policy keeps what everybody else breaks says nothing of two limits."""
    poor, rich = episode([0.0, 1.5], True, reward=0.5), episode([0.0] * 9, False)
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: [poor] * 4 + [rich] * num_kept)
    context: Any = SimpleNamespace(episodes=[rich] * 9)
    limits = {
        "return": ConstraintConfig(name="return", quantity="return", low=5.0, max_probability=0.01),
        "length": ConstraintConfig(name="length", quantity="length", low=5.0, max_probability=0.05),
    }
    found = repeats.label_limits([made(name) for name in limits], limits, {}, {}, context)
    assert [one.label and one.label.claim for one in found] == [None, "return" if num_kept else None]


def test_what_is_one_event_is_one_event_under_a_disturbance_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two such claims that come out alike one counts, and two limits of different events do."""
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: FALLS)
    context: Any = SimpleNamespace(episodes=[CALM])
    a, b, other = high("a"), high("b", 1), ConstraintConfig(name="other", quantity="action", high=0.5)
    limits = {f"limits.{one.name}": one for one in (a, b, other)}
    disturbed = {f"{check}.{one.name}": one for check in ("drift", "attack") for one in (a, b, other)}
    claims = [made(name) for name in (*limits, *disturbed)]

    def labelled(refuted: str) -> dict[str, tuple[LabelKind, str | None]]:
        judged = [one.model_copy(update={"verdict": Verdict.REFUTED}) if one.id == refuted else one for one in claims]
        found = repeats.label_limits(judged, limits, disturbed, {}, context)
        return {one.id: (one.label.kind, one.label.claim) for one in found if one.label is not None}

    unbroken = {f"{check}.other": (LabelKind.NEVER_BROKEN, None) for check in ("limits", "drift", "attack")}
    repeated = {"limits.b": (LabelKind.REPEATS, "limits.a"), "attack.b": (LabelKind.REPEATS, "attack.a")}
    assert labelled("") == unbroken | repeated | {"drift.b": (LabelKind.REPEATS, "drift.a")}
    assert labelled("drift.b") == unbroken | repeated, "a drift that breaks the one and not the other tells them apart"
    assert not labelled("drift.other").keys() & unbroken.keys(), "a drift has broken it: it can be broken"


def test_what_cannot_be_false_cannot_be_under_a_disturbance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "swayed_episodes", lambda _: [LEFT])
    context: Any = SimpleNamespace(episodes=[CALM] * 9)
    limit, sure = high("a"), label(LabelKind.CANNOT_BE_FALSE)
    disturbed = {"drift.a": limit, "attack.a": limit, "drift.alone": high("alone", limit=0.9, share=0.5)}
    claims = [made("limits.a", label=sure), *(made(name) for name in disturbed)]
    claims[2] = claims[2].model_copy(update={"verdict": Verdict.REFUTED})
    found = repeats.label_limits(claims, {"limits.a": limit}, disturbed, {}, context)
    assert [one.label for one in found] == [sure, sure, None, None], "what was seen false can be false"


def test_limits_that_end_episodes_are_one_event_with_a_return_that_counts_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lasting = ConstraintConfig(name="lasting", quantity="return", low=9.0, max_probability=0.5)
    limits = [lasting, high("a"), high("b", 1)]
    assert labelled(monkeypatch, limits, [CALM], *FALLS) == {"lasting": "a", "a": None, "b": "a"}
    # An end for another reason, or a step that goes on beyond a limit: they are several events.
    assert set(labelled(monkeypatch, limits, [CALM], *FALLS, episode([0.0], True)).values()) == {None}
    beyond = episode([0.0, 1.5, 0.0], False)
    assert labelled(monkeypatch, limits[1:], [CALM], *FALLS, beyond) == {"a": None, "b": None}


def test_a_return_of_other_rewards_is_an_event_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    lasting = ConstraintConfig(name="lasting", quantity="return", low=9.0, max_probability=0.5)
    paid = episode([0.0] * 9, False, reward=0.5)
    assert labelled(monkeypatch, [lasting, high("a"), high("b", 1)], [CALM, paid], *FALLS)["lasting"] is None


# --- whole cases ---


def test_cartpole_counts_one_event_once_and_no_vacuous_claim(good: Policy, tmp_path: Path) -> None:
    vacuous = ConstraintConfig(name="pushes", quantity="action", low=0, high=1, max_probability=0.05)
    anywhere = ConstraintConfig(name="anywhere", quantity="observation[0]", low=-4.8, high=4.8, max_probability=0.05)
    earning = ConstraintConfig(name="earning", quantity="reward", low=0.0, max_probability=0.05)
    config = SafetyConfig(num_episodes=100, num_envs=40, constraints=[CART, POLE, vacuous, anywhere, earning])
    case = examine(good, tmp_path, config)
    claims = {claim.id: claim for claim in case.claims}
    kinds = {name: None if one.label is None else one.label.kind for name, one in claims.items()}
    about = ["minimum_return", "statistical_limits.cart", "statistical_limits.pole"]
    assert [kinds[name] for name in about] == [LabelKind.REPEATS, None, LabelKind.REPEATS]
    assert kinds["statistical_limits.anywhere"] is LabelKind.REPEATS, "whoever keeps the cart's limit keeps it"
    vacuous_ones = {"action_bounds", "statistical_limits.pushes"}
    assert {one for one in kinds if kinds[one] is LabelKind.CANNOT_BE_FALSE} == vacuous_ones
    assert {one for one in kinds if kinds[one] is LabelKind.NEVER_BROKEN} == {"statistical_limits.earning"}
    assert {one for one in kinds if kinds[one] is LabelKind.RECORD} == {one for one in claims if "provenance" in one}
    assert tally(case.claims).counted == 7
    assert all(one.examined and one.not_established and one.false_if for one in case.claims)
    assert "100 episodes" in claims["statistical_limits.cart"].examined
    assert check_case(tmp_path) == []


def test_a_case_labels_records_and_what_an_argmax_cannot_break_and_each_claim_says_its_reach(
    barely_trained: Policy,
) -> None:
    claims = SafetyCase.read(barely_trained.root / "safety" / "case.json").claims
    kinds = {claim.id: None if claim.label is None else claim.label.kind for claim in claims}
    assert kinds["action_bounds"] is LabelKind.CANNOT_BE_FALSE
    records = [kind for name, kind in kinds.items() if name.startswith("provenance.")]
    assert records == [LabelKind.RECORD] * 4
    assert all(claim.examined and claim.not_established and claim.false_if for claim in claims)


def test_a_case_from_before_claims_said_so_stays_whole(barely_trained: Policy, tmp_path: Path) -> None:
    document = read_json(barely_trained.root / "safety" / "case.json")
    for claim in document["claims"]:
        for name in ("examined", "not_established", "false_if", "label"):
            claim.pop(name, None)
    path = tmp_path / "case.json"
    path.write_bytes(SafetyCase.model_validate(document).to_bytes())
    assert json.loads(path.read_bytes()) == document
    assert check_case(tmp_path, with_evidence=False) == []
