"""Who decides, from one view of the orders and one of the roles: without a server, by real graphs."""

from typing import Any

import pytest

from loomrl.serving.controls.orders import ActiveOrders
from loomrl.serving.controls.overrides import Override
from loomrl.serving.controls.plan import NO_PLAN, Fallback, KillSwitch, Plan
from loomrl.serving.decisions.authority import FALLBACK, KILL_SWITCH, OVERRIDE, Authority, DecisionSource, challengers
from loomrl.serving.policy.model import MANIFEST, ServedPolicy, UnloadedPolicy
from loomrl.serving.policy.roles import Roles
from loomrl.storage.audit.records import CHAMPION, SPLIT
from loomrl.system.http.problems import Problem
from loomrl.types import PolicyManifest
from tests.support.policies import BALANCING, discrete_folder

BY: dict[str, Any] = {"person": "Ada", "reason": "test"}
SWITCH = KillSwitch(**BY)
AGENTS = [f"agent-{number}" for number in range(2_000)]


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ServedPolicy]:
    folder = discrete_folder(tmp_path_factory.mktemp("policies") / "policy", BALANCING)
    return {version: ServedPolicy.load(folder, version) for version in ("1", "2", "3")}


@pytest.fixture
def roles(versions: dict[str, ServedPolicy]) -> Roles:
    return Roles(champion=versions["1"], pinned={"2": versions["2"], "3": versions["3"]})


def plan(**values: Any) -> Plan:
    return Plan(**values, **BY).dealt_after(NO_PLAN)


def authority(roles: Roles, **orders: Any) -> Authority:
    return Authority("cartpole", ActiveOrders(**orders), roles)


def shown(source: DecisionSource) -> tuple[str, str, int | None]:
    """Role, version, and the action that is taken whatever is observed."""
    return source.role, source.policy.version, None if source.action is None else int(source.action)


def test_each_stands_above_the_next(roles: Roles) -> None:
    one, everyone = Override(action=0, agent_id="a", **BY), Override(version="2", **BY)
    acting = plan(fallback=Fallback(action=1), split={"3": 1.0})
    both = authority(roles, overrides={"a": one, None: everyone}, kill_switch=SWITCH, plan=acting)
    assert shown(both.source_for("a")) == (OVERRIDE, "1", 0)  # an agent's own before that of all
    assert both.source_for("a").override is one
    assert shown(both.source_for("b")) == (OVERRIDE, "2", None)
    switched = authority(roles, overrides={"a": one}, kill_switch=SWITCH, plan=acting)
    assert shown(switched.source_for("a")) == (OVERRIDE, "1", 0)
    assert shown(switched.source_for("b")) == (KILL_SWITCH, "1", 1)
    assert shown(authority(roles, plan=acting).source_for("b")) == (SPLIT, "3", None)
    assert shown(authority(roles).source_for("b")) == (CHAMPION, "1", None)


def test_only_versions_for_themselves_are_on_trial_and_only_people_come_before_the_limit(roles: Roles) -> None:
    policy = roles.champion
    assert policy is not None
    sources = {role: DecisionSource(role, policy) for role in (OVERRIDE, KILL_SWITCH, FALLBACK, CHAMPION, SPLIT)}
    assert {role for role, one in sources.items() if one.is_limited} == {FALLBACK, CHAMPION, SPLIT}
    assert {role for role, one in sources.items() if one.is_on_trial} == {CHAMPION, SPLIT}


def test_a_split_deals_the_shares_it_names_and_says_the_chance_of_each(roles: Roles) -> None:
    found = authority(roles, plan=plan(split={"2": 0.2, "3": 0.1}))
    assert not found.is_one
    assert found.split is not None
    assert found.split.shares == {"2": 0.2, "3": 0.1, "1": 0.7}
    sources = [found.source_for(agent) for agent in AGENTS]
    for version, share in found.split.shares.items():
        dealt = [source for source in sources if source.policy.version == version]
        assert {source.probability for source in dealt} == {share}
        assert len(dealt) / len(AGENTS) == pytest.approx(share, abs=0.04)
        assert {source.role for source in dealt} == {CHAMPION if version == "1" else SPLIT}
    assert [found.split.version_of(agent) for agent in AGENTS] == [one.policy.version for one in sources]


def test_who_cannot_decide_is_dealt_nobody_and_the_champion_has_its_share(
    roles: Roles, versions: dict[str, ServedPolicy]
) -> None:
    dealt = plan(split={"2": 0.5, "3": 0.25})
    away = Roles(champion=versions["1"], pinned={"2": versions["2"]})
    quarantined = Roles(champion=versions["1"], pinned=roles.pinned, quarantined=frozenset({"3"}))
    for left in (away, quarantined):
        found = authority(left, plan=dealt)
        assert found.split is not None
        assert found.split.shares == {"2": 0.5, "1": 0.5}
        assert {found.source_for(agent).policy.version for agent in AGENTS} == {"1", "2"}
        assert found.usual.probability == 0.5
    promoted = authority(Roles(champion=versions["2"], pinned={"3": versions["3"]}), plan=dealt)
    assert promoted.split is not None
    assert promoted.split.shares == {"2": 0.75, "3": 0.25}  # what it was dealt, and what the champion has


def test_one_mandate_stands_for_all_where_no_person_and_no_split_tells_agents_apart(roles: Roles) -> None:
    assert authority(roles).is_one
    assert authority(roles, kill_switch=SWITCH, plan=plan(split={"2": 0.5}, fallback=Fallback(action=1))).is_one
    assert not authority(roles, overrides={"a": Override(action=0, agent_id="a", **BY)}).is_one


def test_the_fallback_stands_in_for_a_champion_that_is_not_there(versions: dict[str, ServedPolicy]) -> None:
    alone = Roles(pinned={"2": versions["2"]})
    assert shown(authority(alone, plan=plan(fallback=Fallback(version="2"))).usual) == (FALLBACK, "2", None)
    assert shown(authority(alone, plan=plan(fallback=Fallback(action=1))).usual) == (FALLBACK, "2", 1)
    assert shown(authority(Roles(champion=versions["1"]), plan=plan(fallback=Fallback(action=1))).fallback) == (
        FALLBACK, "1", 1,
    )  # fmt: skip


def test_a_persons_action_needs_no_loaded_version_where_its_actions_are_known(
    versions: dict[str, ServedPolicy],
) -> None:
    manifest = PolicyManifest.read(versions["1"].folder / MANIFEST)
    known = Roles(known=UnloadedPolicy(manifest, "1"))
    everyone = {None: Override(action=1, **BY)}
    assert shown(authority(known, overrides=everyone).source_for("a")) == (OVERRIDE, "1", 1)
    with pytest.raises(
        Problem, match="no roles of verified versions are kept in this home, so its actions are not known"
    ):
        authority(Roles(), overrides=everyone).source_for("a")


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ({"kill_switch": SWITCH}, "the kill switch is on, by Ada: test; no fallback is set"),
        (
            {"kill_switch": SWITCH, "plan": plan(fallback=Fallback(version="9"))},
            "the fallback, version 9, is not loaded",
        ),
        ({"kill_switch": SWITCH, "plan": plan(fallback=Fallback(action=7))}, "set another fallback"),
        ({"overrides": {None: Override(version="9", **BY)}}, "that version is not loaded: see /status"),
        ({"overrides": {None: Override(fallback=True, **BY)}}, "no fallback is set"),
        ({"overrides": {None: Override(action=7, **BY)}}, "clear the override"),
    ],
)
def test_who_should_decide_and_cannot_is_named(roles: Roles, orders: dict[str, Any], message: str) -> None:
    with pytest.raises(Problem, match=message) as refused:
        authority(roles, **orders).source_for("a")
    assert refused.value.status == 503


def test_why_nobody_decides_is_said(versions: dict[str, ServedPolicy]) -> None:
    with pytest.raises(Problem, match="cartpole has no champion yet"):
        _ = authority(Roles()).usual
    with pytest.raises(Problem, match="cartpole is loaded, and the registry does not say which it is: refused"):
        _ = authority(Roles(unreachable="refused")).usual
    with pytest.raises(Problem, match="version 1 was taken out of service, and there is none to go back to"):
        _ = authority(Roles(taken_out=versions["1"])).usual


def test_a_challenger_that_two_name_is_one(versions: dict[str, ServedPolicy]) -> None:
    roles = Roles(champion=versions["1"], challenger=versions["2"], pinned={"3": versions["3"]})
    named = challengers(ActiveOrders(plan=plan(challengers=["2", "3", "9"])), roles)
    assert [policy.version for policy in named] == ["2", "3"]
