"""How LoomDB numbers the orders of hosts: each is given to it once, and what stands is its last revision."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from loomrl.errors import ServiceError
from loomrl.serving.controls.orders import not_replaced, strictest
from loomrl.storage.loomdb.records import Control

if TYPE_CHECKING:
    from loomrl.storage.loomdb.database import LoomDB

NUM_SHARED = 64  # newest revisions of each control that are read at a time, and replaced orders named with each


def by_name(orders: Iterable[Control]) -> dict[str, list[Control]]:
    """The orders of each control, by its name, in the order they came."""
    found: dict[str, list[Control]] = {}
    for order in orders:
        found.setdefault(order.name, []).append(order)
    return found


def reaching_back(database: "LoomDB", mine: Iterable[Control], revisions: list[Control]) -> list[Control]:
    """A control's newest revisions, and those before them that say what became of ours while this host was away.

    LoomDB numbers no order lower than the host where it was set.

    Raises:
        ServiceError: when the database fails.
    """
    known = {one.identity for one in revisions}
    unknown = [one for one in mine if one.identity not in known]
    oldest = min((one.revision for one in revisions), default=0)
    first = min((one.revision for one in unknown), default=oldest)
    if first >= oldest:
        return revisions
    policy, name = revisions[0].policy, revisions[0].name
    return [*(one for one in database.control_revisions(policy, name, first - 1) if one.revision < oldest), *revisions]


def numbered(database: "LoomDB", mine: Iterable[Control], revisions: list[Control]) -> int:
    """Have LoomDB hold our orders of one control, and last the one that stands; returns how many revisions it got.

    `revisions` are those it has, and are brought up to date. One that was restored from a backup has lost some.

    Raises:
        ServiceError: when the database fails, or takes no order; `revisions` then has what was given to it before.
    """
    num_added = 0
    while (order := _missing(mine, revisions)) is not None:
        newest = max((one.revision for one in revisions), default=0)
        copy = order.model_copy(
            update={
                "revision": max(order.revision, newest + 1),
                "made_from": None,
                "replaces": order.replaces and order.replaces[-NUM_SHARED:],
            }
        )
        if database.add_control(copy):
            revisions.append(copy)
            num_added += 1
        elif others := database.control_revisions(order.policy, order.name, newest):
            revisions.extend(others)
        else:
            raise ServiceError(
                f"LoomDB takes no revision {copy.revision} of {order.name}, and has none: its tables were changed, "
                "restore it from a backup"
            )
    return num_added


def _missing(mine: Iterable[Control], revisions: Sequence[Control]) -> Control | None:
    """The order that LoomDB is to be given next; None where all of ours are there and the one that stands is last."""
    known = {one.identity for one in revisions}
    for order in mine:
        if order.identity not in known and not any(one.is_set_with_knowledge_of(order) for one in revisions):
            return order
    stands, last = strictest(not_replaced(revisions)), max(revisions, key=lambda one: one.revision)
    return None if stands.is_same_order(last) else stands
