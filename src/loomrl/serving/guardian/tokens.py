"""Whose word evidence is: an agent's, where a token names it; else its token's, however many agents that speaks for.

Whoever holds a token that may speak for any number of agents can be as many as it likes, and take the names of others.
So the same name under two tokens is two units, and what the units of one token show takes no version out while others,
who ask for at least as many decisions, do not show it too (`VersionMonitors.look`). They are counted twice, in all and
up to a limit in every ten seconds, so that a burst is not heard over others who have been asking for longer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self, TypeVar

from loomrl.system.schema import Document

LEAST_REQUESTS = 100  # of others, in two windows: with fewer they cannot be expected to have seen a fault
CORROBORATION = 10.0  # e-value of what others show; a version that keeps its limits has it one time in ten at the most
WINDOW_SECONDS = 600.0
MOST_IN_SLOT = 100  # requests of one token that count in ten seconds
Value = TypeVar("Value")
_SLOT_CHARACTERS = len("2026-01-01T00:00:0")  # of a timestamp: ten seconds
_APART = "\x1f"  # between an agent's id, which is printable, and its token


def unit_of(agent_id: str, token: str | None) -> str:
    """The key under which evidence counts as one: the agent's id, with its token where there is one."""
    return f"{agent_id}{_APART}{token}" if token else agent_id


def units_of(agent_ids: list[str], tokens: Sequence[str]) -> list[str]:
    """The keys of several requests, (B,), as `unit_of` gives them."""
    if tokens and tokens.count(tokens[0]) == len(tokens):
        ending = unit_of("", tokens[0])
        return [agent_id + ending for agent_id in agent_ids] if ending else agent_ids
    return list(map(unit_of, agent_ids, tokens))


def agent_of(unit: str) -> str:
    """The agent's id in a key that `unit_of` made."""
    return unit.partition(_APART)[0]


def token_of(unit: str) -> str:
    """The token in a key that `unit_of` made; empty where it has none."""
    return unit.partition(_APART)[2]


def without(known: Mapping[str, Value], token: str) -> dict[str, Value]:
    """The entries of `known` whose keys have another token than this one."""
    ending = f"{_APART}{token}"
    return {unit: value for unit, value in known.items() if not unit.endswith(ending)}


def windows_between(first: str, last: str) -> int:
    """How many windows of ten minutes `last` comes after `first`: beginnings of timestamps, as `2026-01-01T00:0`."""
    begun, ended = (datetime.fromisoformat(f"{one}0Z") for one in (first, last))
    return int((ended - begun).total_seconds() // WINDOW_SECONDS)


@dataclass
class RequestCounts:
    """How many decisions were asked for under each token, in the window before and in the newest.

    Attributes:
        window: beginning of the newest window's timestamps; empty before the first.
        counts: token -> numbers in the window before and in the newest.
    """

    window: str = ""
    counts: dict[str, list[int]] = field(default_factory=dict)

    def enter_window(self, window: str) -> None:
        """Count from now on in this window; counts from before the previous window are dropped."""
        self.counts, self.window = self._in_window(window), window

    def add(self, requests: Mapping[str, int]) -> None:
        """Add these counts, by token, to the newest window."""
        for token, count in requests.items():
            self.counts.setdefault(token, [0, 0])[1] += count

    def under(self, token: str) -> int:
        """How many decisions were asked for under this token, in the last window and the newest one together."""
        return sum(self.counts.get(token, ()))

    def under_others(self, token: str) -> int:
        """How many decisions were asked for in both windows under all other tokens, or without one."""
        return sum(sum(counts) for one, counts in self.counts.items() if one != token)

    def _in_window(self, window: str) -> dict[str, list[int]]:
        """As they stand in this window, which is the same or a later one."""
        later = windows_between(self.window, window) if self.window else 2
        if later == 0:
            return {token: list(counts) for token, counts in self.counts.items()}
        return {token: [now, 0] for token, (_, now) in self.counts.items() if now} if later == 1 else {}

    @classmethod
    def sum_of(cls, servers_counts: Iterable["RequestCounts"]) -> Self:
        """The sum of several servers' counts, in the newest window that any of them has entered."""
        known = [one for one in servers_counts if one.window]
        found = cls(max((one.window for one in known), default=""))
        for one in known:
            for token, counts in one._in_window(found.window).items():
                kept = found.counts.setdefault(token, [0, 0])
                kept[:] = [kept[0] + counts[0], kept[1] + counts[1]]
        return found


@dataclass
class SteadyCounts(RequestCounts):
    """Counts as in `RequestCounts`, of one token at most `MOST_IN_SLOT` in ten seconds. Under an empty text are all
    agents whose tokens speak for them alone: their requests count each.
    """

    slot: str = ""  # the newest ten seconds,
    in_slot: dict[str, int] = field(default_factory=dict)  # and what counted in them

    def add_at(self, requests: Mapping[str, int], timestamp: str) -> None:
        """Add these counts, by token, that were asked for at this time (ISO 8601), as far as ten seconds hold them.

        A clock that goes back stays in the ten seconds it was in.
        """
        slot = timestamp[:_SLOT_CHARACTERS]
        if slot > self.slot:
            self.slot, self.in_slot = slot, {}
        counted = {
            token: min(count, MOST_IN_SLOT - self.in_slot.get(token, 0)) if token else count
            for token, count in requests.items()
        }
        self.in_slot |= {token: self.in_slot.get(token, 0) + count for token, count in counted.items()}
        self.add(counted)


class Suspicion(Document):
    """A monitor refutes a version by what the agents of one token show, while all others do not show it: people
    judge.
    """

    version: str
    monitor: str
    token: str
    num_agents: int  # that it named
    e_value: float  # of what all show,
    e_value_of_others: float  # and of what all others show
    num_decisions: int  # the version's own, until then

    @property
    def source(self) -> tuple[str, str, str]:
        """Version, monitor and token: a suspicion that has all three in common is the same one."""
        return self.version, self.monitor, self.token

    @property
    def reason(self) -> str:
        """One line for people: what the token's agents show, of which version, with the e-values of all and of all
        others."""
        return (
            f"{self.monitor}: what {self.num_agents} agents of the token {self.token!r} show would take version "
            f"{self.version} out of service (e-value {self.e_value:.3g}), but no other agents show it "
            f"(e-value {self.e_value_of_others:.3g}): look at who holds that token, and at the version"
        )
