"""What people have ordered, as one view, and which of two orders stands.

Orders are numbered, not dated: no clock decides between them. One that was set with knowledge of another replaces it.
Of two that were set without knowledge of each other, on hosts or by processes that were apart, the stricter one stands:
the kill switch on before off, any override before none, an action or the fallback before a version, the plan that lets
fewer agents be decided for by versions on trial. Of two that are equally strict the one that is numbered last stands.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from loomrl.loomdb.records import Control
from loomrl.serving.overrides import Override
from loomrl.serving.plan import NO_PLAN, KillSwitch, Plan

log = logging.getLogger(__name__)
PLAN, KILL_SWITCH, OVERRIDE = "plan", "kill_switch", "override"  # of one agent: "override/AGENT"
_KINDS: dict[str, type[Override | Plan | KillSwitch]] = {PLAN: Plan, KILL_SWITCH: KillSwitch}


@dataclass(frozen=True)
class Orders:
    """What is in force: one consistent view, never changed, only replaced."""

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


def orders_of(controls: Mapping[str, Control]) -> Orders:
    """The view that follows from the controls, by name."""
    documents = [document_of(control) for control in controls.values()]
    overrides = {document.agent_id: document for document in documents if isinstance(document, Override)}
    switch = next((document for document in documents if isinstance(document, KillSwitch)), None)
    plan = next((document for document in documents if isinstance(document, Plan)), NO_PLAN)
    return Orders(overrides, switch, plan)


def document_of(control: Control) -> Override | Plan | KillSwitch | None:
    """What a control says; None where it was lifted.

    Raises:
        ValidationError: for what this version of LoomRL cannot read.
    """
    if control.document is None:
        return None
    return _KINDS.get(control.name, Override).model_validate(control.document)


def is_readable(control: Control) -> bool:
    """Whether this version of LoomRL can read it; what it cannot is told in the log."""
    try:
        document_of(control)
    except ValidationError as error:
        first = error.errors()[0]
        log.error("%s of %s, by %s, stays as it was: %s", control.name, control.policy, control.actor, first["msg"])
        return False
    return True


def override_name(agent_id: str | None) -> str:
    """The control that an agent's override is; None: that of all agents."""
    return OVERRIDE if agent_id is None else f"{OVERRIDE}/{agent_id}"


def gives_way(order: Control, standing: Control) -> bool:
    """Whether an order that was set without knowledge of the standing one does not replace it.

    A standing one that says the same stays, so that a release or an end that several hosts see is numbered once.
    """
    return order.document == standing.document or _strictness(standing) > _strictness(order)


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
