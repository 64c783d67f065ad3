"""What monitors of several servers know together.

An agent that several servers have seen counts where it was shared first, in life and in each window, so that its
evidence never changes hands: what is known together grows in one order for all servers (`exchange`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from loomrl.serving.guardian.evidence import Counts, DealtBefore, VersionEvidence
from loomrl.serving.guardian.monitor import Monitor
from loomrl.serving.guardian.tokens import RequestCounts, SteadyCounts
from loomrl.serving.guardian.trial import Arm, Enrolled, first_enrolled

Homes = tuple[dict[str, int], dict[str, int]]  # agent -> revision by which it was known first: in life, in the window
Owners = dict[str, VersionEvidence]  # agent -> the evidence in which it counts


@dataclass(frozen=True)
class Shared:
    """What LoomDB holds about a policy's versions, as one server sees it."""

    number: int | None  # of this server; None for one that has shared nothing
    rows: Mapping[str, Sequence[VersionEvidence]]  # version -> evidence of each server
    homes: Mapping[str, Homes]  # version -> those of this server's agents


def merged_evidence(rows: Sequence[VersionEvidence]) -> VersionEvidence:
    """The evidence of one or more servers about one version, merged as if one server had seen everything."""
    window = max(one.window for one in rows)
    newest = [one for one in rows if one.window == window]
    names = dict.fromkeys(name for one in rows for name in one.monitors)
    life, recent = _owners(rows, lambda one: one.homes), _owners(newest, lambda one: one.window_homes)
    return VersionEvidence(
        version=rows[0].version,
        num_decisions=sum(one.num_decisions for one in rows),
        begun=min(one.begun for one in rows),
        window=window,
        unnamed=_unnamed(recent) | _unnamed(life),
        requests=_counts(lambda one: one.requests, life, recent),
        episodes=_counts(lambda one: one.episodes, life, recent),
        monitors={name: _monitor(name, rows, life, recent) for name in names},
        arm=_arm([one.arm for one in rows if one.arm is not None]),
        before=_before([one.before for one in rows]),
        requests_by_token=RequestCounts.sum_of(one.requests_by_token for one in rows),
        steady_requests_by_token=SteadyCounts.sum_of(one.steady_requests_by_token for one in rows),
    )


def _owners(rows: Sequence[VersionEvidence], homes_of: Callable[[VersionEvidence], Mapping[str, int]]) -> Owners:
    found: dict[str, tuple[int, VersionEvidence]] = {}
    for one in rows:
        for agent, revision in homes_of(one).items():
            if agent not in found or revision < found[agent][0]:
                found[agent] = revision, one
    return {agent: owner for agent, (_, owner) in found.items()}


def _unnamed(owners: Owners) -> dict[str, bool]:
    """Whether agents name no episodes; without those a server that was killed has yet to read again."""
    return {agent: owner.unnamed[agent] for agent, owner in owners.items() if agent in owner.unnamed}


def _counts(counts_of: Callable[[VersionEvidence], Counts], life: Owners, recent: Owners) -> Counts:
    window = {agent: counts_of(owner).window.get(agent, 0) for agent, owner in recent.items()}
    total = {agent: sum(counts_of(owner).of(agent)) for agent, owner in life.items()}
    before = {agent: count - window.get(agent, 0) for agent, count in total.items()}
    return Counts(*({agent: count for agent, count in one.items() if count} for one in (before, window)))


def _monitor(name: str, rows: Sequence[VersionEvidence], life: Owners, recent: Owners) -> Monitor:
    """Of all servers that hold the version to the same limit as the first that has it; others are left out."""
    first = next(one.monitors[name] for one in rows if name in one.monitors)
    found = Monitor(first.limit, first.threshold, first.block)
    for one in rows:
        monitor = one.monitors.get(name)
        if monitor is None or (monitor.limit, monitor.block) != (first.limit, first.block):
            continue
        found.total += monitor.total
        found.life |= {agent: sums for agent, sums in monitor.life.items() if life.get(agent) is one}
        found.blocks |= {agent: blocks for agent, blocks in monitor.blocks.items() if life.get(agent) is one}
        found.window |= {agent: sums for agent, sums in monitor.window.items() if recent.get(agent) is one}
    return found


def _before(rows: Sequence[DealtBefore]) -> DealtBefore:
    """When each experiment dealt an agent first, in arms that are no more."""
    found: DealtBefore = {}
    for experiment, times in ((name, times) for dealt in rows for name, times in dealt.items()):
        known = found.setdefault(experiment, {})
        for agent, time in times.items():
            known[agent] = min(known.get(agent, time), time)
    return found


def _arm(arms: Sequence[Arm]) -> Arm | None:
    """Of the newest experiment. An agent counts at the server that dealt it first there."""
    newest = max(arms, key=lambda arm: max((one.time for one in arm.agents.values()), default=""), default=None)
    if newest is None:
        return None
    same = [arm for arm in arms if (arm.experiment, arm.is_champion) == (newest.experiment, newest.is_champion)]
    known: dict[str, list[Enrolled]] = {}
    for agent, enrolled in ((agent, one) for arm in same for agent, one in arm.agents.items()):
        known.setdefault(agent, []).append(enrolled)
    seen = [end for arm in same if arm.span is not None for end in arm.span]
    return Arm(
        newest.experiment,
        newest.is_champion,
        max(arm.number for arm in same),
        {agent: several[0] if len(several) == 1 else first_enrolled(several) for agent, several in known.items()},
        (min(seen), max(seen)) if seen else None,
    )
