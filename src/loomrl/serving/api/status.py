"""The server's state, as `/status` shows it."""

import os
import time
from typing import Any, NotRequired

from typing_extensions import TypedDict

from loomrl.serving.context import SYNC_SECONDS, ServerContext
from loomrl.serving.controls.overrides import Override
from loomrl.serving.controls.plan import KillSwitch, Plan
from loomrl.serving.guardian.guardian import GuardianShown
from loomrl.serving.mirror.process import Shadow
from loomrl.serving.policy.model import ServedPolicy


class PolicyShown(TypedDict):
    """A loaded version, and the digest of its graph."""

    version: str
    onnx_sha256: str


class RolesStatus(TypedDict):
    """Who decides, and who does so in shadow."""

    champion: PolicyShown | None
    challenger: PolicyShown | None


class NotTaken(TypedDict):
    """A version that was not taken into service, and why."""

    version: str
    reason: str


class RolesSource(TypedDict):
    """Where roles come from: the registry, or what was verified here last because the registry has not answered yet."""

    source: str
    verified: str | None  # when, ISO 8601


class OrdersShown(TypedDict):
    """Where orders are kept that the disk takes no file for, and what else is wrong; null, or empty, where all is
    well.
    """

    reserved: str | None  # in the room that is reserved: why
    unsaved: str | None  # in this server's processes alone: why
    damaged: str | None  # what was wrong with a file that was set aside
    missing: str | None  # why orders that were kept may not be known here
    unconfirmed: list[int]  # workers that were told and have not confirmed; they are told again


class AuditShown(TypedDict):
    """How far this server's chain of records has come, and how far it is durable and anchored."""

    server: str
    segment: str
    sequence: int
    hash: str
    durability: str  # `strict` also where a loaded version is safety-critical
    durable_sequence: int
    sync_every_seconds: float  # 0 where each answer waits for the disk
    unsynced_seconds: float  # how long a record may have been written and not be on the disk, now
    anchor_every_seconds: float  # between looks at whether LoomDB knows the newest record
    sync_error: str | None
    anchored_sequence: int | None
    unsigned: str | None
    anchor_error: str | None
    repaired: Any
    waiting_bytes: int  # of orders' records, in the reserve until the log has room
    last_error: str | None


class ShadowShown(TypedDict):
    """How far the challengers have come with mirroring decisions, and what they failed on."""

    pid: int | None
    num_mirrored: int
    num_pending: int
    num_dropped: int
    num_errors: int
    num_restarts: int
    last_error: str | None
    refused: list[NotTaken]
    sequence: int


class QuarantinedShown(TypedDict):
    """A version that monitors took out of service, and the one that decides instead."""

    version: str
    to: str | None
    time: str
    reason: str


class Status(TypedDict):
    """Everything a person asks first; what people ordered is null for those who may not observe."""

    policy: str
    pid: int
    uptime_seconds: float
    ready: bool
    roles: RolesStatus
    loaded: list[str]
    refused: list[NotTaken]
    loading: list[str]
    registry_error: str | None
    roles_source: RolesSource
    orders: OrdersShown
    num_swaps: int
    audit: AuditShown
    shadow: ShadowShown
    guardian: GuardianShown | None  # of several workers one has it
    quarantined: list[QuarantinedShown]
    plan: Plan | None
    kill_switch: KillSwitch | None
    overrides: list[Override] | None
    errors: dict[str, str]
    rate_per_agent: float
    rate_per_token: float | None
    rate_in_all: float | None
    latency_seconds: dict[str, float] | None
    workers: NotRequired[list[dict[str, Any]]]  # where there are several: the state of each, or its `error`


def describe(context: ServerContext, with_orders: bool) -> Status:
    """The server's state, as `/status` answers. Without `with_orders` what people ordered is None: plan, kill switch
    and overrides.
    """
    head, keeper, orders = context.audit.head, context.roles, context.controls.orders
    anchored = context.keeper.anchored.get(head.server)
    return {
        "policy": context.settings.policy,
        "pid": os.getpid(),
        "uptime_seconds": time.time() - context.started,
        "ready": keeper.is_ready,
        "roles": show_roles(context),
        "loaded": sorted(keeper.current.versions()),
        "refused": [{"version": entry.version, "reason": entry.reason} for entry in list(keeper.refused.values())],
        "loading": keeper.loading,
        "registry_error": keeper.unreachable,
        "roles_source": {
            "source": "registry" if keeper.last is None else "last verified",
            "verified": None if keeper.last is None else keeper.last.verified,
        },
        "orders": {
            "reserved": context.controls.reserved,
            "unsaved": context.controls.unsaved,
            "damaged": context.controls.damaged,
            "missing": context.controls.missing,
            "unconfirmed": context.controls.unconfirmed,
        },
        "num_swaps": keeper.num_swaps,
        "audit": {
            "server": head.server,
            "segment": head.segment,
            "sequence": head.sequence,
            "hash": head.digest,
            "durability": "strict" if context.is_strict else context.settings.durability,
            "durable_sequence": context.audit.durable_sequence,
            "sync_every_seconds": 0.0 if context.is_strict else SYNC_SECONDS,
            "unsynced_seconds": context.keeper.unsynced_seconds,
            "anchor_every_seconds": context.settings.anchor_seconds,
            "sync_error": context.keeper.sync_error,
            "anchored_sequence": anchored.sequence if anchored else None,
            "unsigned": context.keeper.unsigned,
            "anchor_error": context.errors.get("anchor"),
            "repaired": context.audit.repaired,
            "waiting_bytes": context.audit.num_waiting_bytes,
            "last_error": context.last_audit_error,
        },
        "shadow": _shadow(context.shadow),
        "guardian": None if context.guardian is None else context.guardian.process(),
        "quarantined": [
            {"version": entry.version, "to": entry.to, "time": entry.time, "reason": entry.trigger.reason}
            for entry in context.quarantine.entries()
        ],
        "plan": orders.plan if with_orders else None,
        "kill_switch": orders.kill_switch if with_orders else None,
        "overrides": orders.active_overrides() if with_orders else None,
        "errors": dict(context.errors),
        "rate_per_agent": context.limiter.rate,
        "rate_per_token": context.limiter.token_rate,
        "rate_in_all": context.limiter.total_rate,
        "latency_seconds": context.metrics.latency_seconds(),
    }


def _shadow(shadow: Shadow) -> ShadowShown:
    state = shadow.state
    head = state.own_head()
    return {
        "pid": shadow.pid,
        "num_mirrored": state.num_mirrored,
        "num_pending": shadow.num_pending,
        "num_dropped": state.num_dropped,
        "num_errors": state.num_errors,
        "num_restarts": shadow.num_restarts,
        "last_error": state.last_error,
        "refused": [{"version": version, "reason": reason} for (version, _), reason in shadow.refused.items()],
        "sequence": -1 if head is None else head.sequence,
    }


def show_roles(context: ServerContext) -> RolesStatus:
    """Which version decides, and which does so in shadow; None where there is none."""
    roles = context.roles.current
    return {"champion": _policy(roles.champion), "challenger": _policy(roles.challenger)}


def _policy(policy: ServedPolicy | None) -> PolicyShown | None:
    if policy is None:
        return None
    return {"version": policy.version, "onnx_sha256": policy.manifest.onnx_sha256}
