"""Who decides, in the order of authority: a human override, the kill switch, the rate limit, the shield, the policy.

Overrides, the kill switch and the plan settle it before anything is computed, and are put together here. The rate limit
holds for what neither a person nor the kill switch decides; where the shield or the policy has no answer to an
observation, the fallback has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from loomrl.serving.controls.orders import ActiveOrders
from loomrl.serving.controls.overrides import Override
from loomrl.serving.controls.plan import SplitAssignment
from loomrl.serving.decisions.actions import check_action
from loomrl.serving.policy.model import ServedPolicy
from loomrl.serving.policy.roles import Roles
from loomrl.storage.audit.records import CHAMPION, ON_TRIAL, SPLIT
from loomrl.system.http.problems import Problem

OVERRIDE, KILL_SWITCH, FALLBACK = "override", "kill_switch", "fallback"  # roles beside those of `ON_TRIAL`


@dataclass(frozen=True, eq=False, slots=True)
class Split:
    """Which version each agent is dealt, as far as the plan's versions are loaded and not in quarantine.

    It stands in every record while a split is in force, whoever decides: what a version is compared by is what was
    dealt, not who happened to decide.
    """

    experiment: str  # whose split it is
    champion: str
    shares: Mapping[str, float]  # by version, the champion's among them: the chance of being dealt to it
    assignment: SplitAssignment

    def version_of(self, agent_id: str) -> str:
        """The version that this agent is assigned to; the champion where the assigned one cannot decide."""
        version = self.assignment.version_of(agent_id)
        return version if version is not None and version in self.shares else self.champion


@dataclass(frozen=True, eq=False, slots=True)
class DecisionSource:
    """Who decides for an agent, and in which role.

    `action` is what a person named for every observation, None where `policy` chooses.
    """

    role: str
    policy: ServedPolicy
    action: NDArray[Any] | None = None  # for every observation, instead of the policy's
    override: Override | None = None
    probability: float = 1.0  # that the split deals an agent to this version
    split: Split | None = None  # that is in force, whoever decides

    @property
    def is_limited(self) -> bool:
        """Whether the rate limit holds for these decisions: for all but those of overrides and the kill switch."""
        return self.role not in (OVERRIDE, KILL_SWITCH)

    @property
    def is_on_trial(self) -> bool:
        """Whether a version decides for itself, not for a person and not in another's place."""
        return self.role in ON_TRIAL


class Authority:
    """The decision sources that follow from one view of what people ordered and one of what is loaded."""

    def __init__(self, policy: str, orders: ActiveOrders, roles: Roles, unknown: str | None = None) -> None:
        """`unknown` says why orders may be missing: then only people and the kill switch decide."""
        self.policy, self.orders, self.roles, self.unknown = policy, orders, roles, unknown
        self._withheld = unknown or roles.unknown
        self._assignment = SplitAssignment(policy, orders.plan)
        self._overridden: dict[str, DecisionSource] = {}  # by the override's id
        self.split = self._split_in_force()
        deals = orders.kill_switch is None and self._withheld is None
        self._split_sources = self._sources_of_split() if deals else {}
        decides = orders.kill_switch is not None or self._withheld is None
        self.is_one = decides and not orders.overrides and not self._split_sources  # `usual`, for all agents

    def source_for(self, agent_id: str) -> DecisionSource:
        """Who decides for an agent.

        Raises:
            Problem: 503 where those who should cannot.
        """
        if self.orders.overrides and (override := self.orders.override_for(agent_id)) is not None:
            return self._by_override(override)
        if self._split_sources and (version := self._assignment.version_of(agent_id)) is not None:
            return self._split_sources.get(version) or self.usual
        return self.usual

    @cached_property
    def usual(self) -> DecisionSource:
        """Who decides for agents that no override and no split names; raises as `source_for` does."""
        if (switch := self.orders.kill_switch) is not None:
            return self._fallback(KILL_SWITCH, f"the kill switch is on, by {switch.person}: {switch.reason}")
        if self._withheld is not None:
            raise Problem(503, f"what was set last cannot be read, so no version acts: {self._withheld}")
        if (champion := self.roles.champion) is None:
            return self._fallback(FALLBACK, self._why_no_champion())
        left = 1.0 - sum(map(self.orders.plan.fraction, self._split_sources))
        return DecisionSource(CHAMPION, champion, probability=round(left, 6), split=self.split)

    @cached_property
    def fallback(self) -> DecisionSource:
        """Who decides where the shield or the policy has no answer; raises as `source_for` does."""
        return self._fallback(FALLBACK, "the policy has no answer to this observation")

    def _why_no_champion(self) -> str:
        if (taken_out := self.roles.taken_out) is not None:
            return (
                f"version {taken_out.version} was taken out of service, and there is none to go back to: see /monitors"
            )
        if self.roles.unreachable is not None:
            return (
                f"no champion of {self.policy} is loaded, and the registry does not say which it is: "
                f"{self.roles.unreachable}"
            )
        return f"{self.policy} has no champion yet; run `loomrl run`, or see /status for a refused version"

    def _split_in_force(self) -> Split | None:
        """Agents of a version that is not loaded, or in quarantine, stay with the champion."""
        plan, champion = self.orders.plan, self.roles.champion
        if not plan.split or champion is None:
            return None
        shares = {version: plan.fraction(version) for version in plan.split if self._can_decide(version)}
        own = shares.get(champion.version, 0.0)  # a version of the split that became champion has both
        shares[champion.version] = round(own + 1.0 - sum(shares.values()), 6)
        return Split(plan.experiment or "", champion.version, shares, self._assignment)

    def _can_decide(self, version: str) -> bool:
        return self.roles.by_version(version) is not None and version not in self.roles.quarantined

    def _sources_of_split(self) -> dict[str, DecisionSource]:
        """By version."""
        plan, found = self.orders.plan, dict[str, DecisionSource]()
        for version in filter(self._can_decide, plan.split):
            policy = self.roles.by_version(version)
            assert policy is not None, "it is loaded"
            found[version] = DecisionSource(SPLIT, policy, probability=plan.fraction(version), split=self.split)
        return found

    def _by_override(self, override: Override) -> DecisionSource:
        found = self._overridden.get(override.id)
        if found is None:
            found = self._overridden[override.id] = self._overriding(override)
        return found

    def _overriding(self, override: Override) -> DecisionSource:
        if override.fallback:
            return self._fallback(OVERRIDE, override.describe(), override)
        if override.version is None:
            return self._constant(OVERRIDE, override.action, override.describe(), "clear the override", override)
        policy = self.roles.by_version(override.version)
        if policy is None:
            raise Problem(503, f"{override.describe()}; that version is not loaded: see /status, or clear the override")
        return DecisionSource(OVERRIDE, policy, override=override, split=self.split)

    def _fallback(self, role: str, why: str, override: Override | None = None) -> DecisionSource:
        fallback = self.orders.plan.fallback
        if fallback is None:
            raise Problem(503, f"{why}; no fallback is set")
        if fallback.version is None:
            return self._constant(role, fallback.action, why, "set another fallback", override)
        policy = self.roles.by_version(fallback.version)
        if policy is None:
            raise Problem(503, f"{why}; the fallback, version {fallback.version}, is not loaded: see /status")
        return DecisionSource(role, policy, override=override, split=self.split)

    def _constant(self, role: str, action: Any, why: str, fix: str, override: Override | None) -> DecisionSource:
        """An action that a person named, checked against the action space of what is loaded."""
        policy = self.roles.whose_actions()
        if policy is None:
            raise Problem(
                503,
                f"{why}; no version of {self.policy} is loaded and no roles of verified versions are kept in this "
                "home, so its actions are not known: have the registry answer until a server of this home is ready, or "
                "serve a folder with --folder",
            )
        try:
            return DecisionSource(role, policy, check_action(action, policy), override, split=self.split)
        except Problem as problem:  # set where the action space is not known: not the agent's fault
            raise Problem(503, f"{why}: {problem.message}; {fix}") from problem


def challengers(orders: ActiveOrders, roles: Roles) -> list[ServedPolicy]:
    """Who decides in shadow, each once: the registry's challenger and those of the plan, as far as they are loaded."""
    named = [roles.challenger, *map(roles.by_version, orders.plan.challengers)]
    return list({policy.version: policy for policy in named if policy is not None}.values())
