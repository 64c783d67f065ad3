"""What people have ordered, as one view, and which of two orders stands.

No clock decides between them. One that was set with knowledge of another replaces it, and names it.
Of two that were set without knowledge of each other, on hosts or by processes that were apart, the stricter one stands:
the kill switch on before off, any override before none, an action or the fallback before a version, the plan that lets
fewer agents be decided for by versions on trial. Of two that are equally strict the one that is numbered last stands.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from loomrl.serving.controls.overrides import Override
from loomrl.serving.controls.plan import NO_PLAN, KillSwitch, Plan
from loomrl.storage.loomdb.records import Control
from loomrl.system.plain import on_one_line

log = logging.getLogger(__name__)
NUM_REPLACED = 4_096  # identities of replaced orders that are remembered with each
PLAN, KILL_SWITCH, OVERRIDE = "plan", "kill_switch", "override"  # of one agent: "override/AGENT"
_KINDS: dict[str, type[Override | Plan | KillSwitch]] = {PLAN: Plan, KILL_SWITCH: KillSwitch}


@dataclass(frozen=True)
class ActiveOrders:
    """What is in force: one consistent view, never changed, only replaced.

    `overrides` are by agent, under None the one of all agents; `kill_switch` is None while it is off.
    """

    overrides: Mapping[str | None, Override] = field(default_factory=dict)  # by agent; None: of all agents
    kill_switch: KillSwitch | None = None
    plan: Plan = NO_PLAN

    def override_for(self, agent_id: str) -> Override | None:
        """The override in force for an agent: its own, else the one for all."""
        return self.overrides.get(agent_id) or self.overrides.get(None)

    def active_overrides(self) -> list[Override]:
        """All overrides in force, oldest first."""
        return sorted(self.overrides.values(), key=lambda override: override.created)

    def versions(self) -> set[str]:
        """Every version that has to be loaded for them."""
        pinned = {override.version for override in self.overrides.values() if override.version is not None}
        return pinned | self.plan.versions()


def orders_of(controls: Mapping[str, Control]) -> ActiveOrders:
    """The view that follows from the controls, by name.

    Raises:
        ValidationError: for a control that this version of LoomRL cannot read.
    """
    documents = [document_of(control) for control in controls.values()]
    overrides = {document.agent_id: document for document in documents if isinstance(document, Override)}
    switch = next((document for document in documents if isinstance(document, KillSwitch)), None)
    plan = next((document for document in documents if isinstance(document, Plan)), NO_PLAN)
    return ActiveOrders(overrides, switch, plan)


def document_of(control: Control) -> Override | Plan | KillSwitch | None:
    """What a control says; None where it was lifted.

    Raises:
        ValidationError: for what this version of LoomRL cannot read.
    """
    if control.document is None:
        return None
    return _KINDS.get(control.name, Override).model_validate(control.document)


def is_readable(control: Control) -> bool:
    """Whether this version of LoomRL can read a control; why it cannot is told in the log."""
    try:
        document_of(control)
    except ValidationError as error:
        first = error.errors()[0]
        told = f"{control.name} of {control.policy}, by {control.actor}, stays as it was: {first['msg']}"
        log.error("%s", on_one_line(told))
        return False
    return True


def override_name(agent_id: str | None) -> str:
    """The name of the control that an agent's override is; None: of the one for all agents."""
    return OVERRIDE if agent_id is None else f"{OVERRIDE}/{agent_id}"


def not_replaced(orders: Iterable[Control]) -> list[Control]:
    """Of orders of one control those that no other was set with knowledge of, sorted by their identities.

    Whoever knows the same orders finds the same, in whichever sequence they were heard of: a multi-value register
    (Shapiro et al. 2011, "A comprehensive study of convergent and commutative replicated data types", section 3.2.2).
    """
    copies: dict[str, Control] = {}
    for order in orders:
        identity = order.identity
        copies[identity] = _joined(copies.get(identity, order), order)
    found = {
        identity: order
        for identity, order in copies.items()
        if not any(
            other.is_set_with_knowledge_of(order) and not order.is_set_with_knowledge_of(other)
            for other in copies.values()
            if other is not order
        )
    }
    return [_knowing_all(found[identity], copies) for identity in sorted(found)]


def strictest(orders: Iterable[Control]) -> Control:
    """Which of one or more orders stands; of equally strict ones the one that LoomDB numbered last, or has yet to
    number.
    """
    return max(orders, key=lambda one: (_strictness(one), one.made_from is not None, one.place, one.identity))


def is_at_least_as_strict(one: Control, other: Control) -> bool:
    """Whether an order leaves no more to policies than another of the same control."""
    return _strictness(one) >= _strictness(other)


def _joined(one: Control, other: Control) -> Control:
    """What two copies of an order say: the number that LoomDB gave it last, and all that it replaces."""
    numbered = max(one, other, key=lambda copy: (copy.made_from is None, copy.place))
    if one.replaces is None or other.replaces is None:
        known = one.replaces or other.replaces
    else:  # where room is short the oldest are left out
        shorter, longer = sorted((one.replaces, other.replaces), key=lambda names: (len(names), names))
        known = [*(name for name in shorter if name not in longer), *longer][-NUM_REPLACED:]
    return numbered if numbered.replaces == known else numbered.model_copy(update={"replaces": known})


def _knowing_all(order: Control, copies: Mapping[str, Control]) -> Control:
    """As it names also what those that it replaces were set with knowledge of, as far as they are at hand: who heard of
    nothing in between can tell then that its own order is over.
    """
    if order.replaces is None:
        return order
    known = dict.fromkeys(order.replaces)
    newly = list(known)
    while newly:
        older = dict.fromkeys(name for one in newly if one in copies for name in copies[one].replaces or ())
        newly = [name for name in older if name not in known]
        known = {**dict.fromkeys(newly), **known}
    return order.model_copy(update={"replaces": list(known)[-NUM_REPLACED:]})


def _strictness(control: Control) -> tuple[float, ...]:
    """The higher, the less is left to policies, and to those on trial. What cannot be read counts for the most."""
    try:
        document = document_of(control)
    except ValidationError:
        return (float("inf"),)
    if isinstance(document, Plan):
        return (float(document.fallback is not None), -sum(document.split.values()))
    if isinstance(document, Override):
        return (1.0 if document.version is not None else 2.0,)
    return (float(document is not None),)


def with_an_end(controls: Iterable[Control]) -> Iterator[tuple[Control, Override]]:
    """The overrides with an end among orders."""
    for control in filter(is_readable, controls):
        one = document_of(control)
        if isinstance(one, Override) and one.lifetime_seconds is not None:
            yield control, one
