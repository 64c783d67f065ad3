"""Episodes of agents that a split dealt to two versions, as the log tells them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from loomrl.promotion.comparison.window import Arms, Assignment, WindowEpisode
from tests.support.simulated_logs import episode

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
Run = tuple[float, float, float]  # when an episode begins and how long it lasts, in seconds, and its return


def at(seconds: float) -> str:
    """ISO 8601, as records write it."""
    return (BEGIN + timedelta(seconds=seconds)).isoformat(timespec="microseconds")


def dealt(rng: np.random.Generator, number: int, share: float = 0.5) -> list[str]:
    """Versions of agents, "2" with the share."""
    return ["2" if chance < share else "1" for chance in rng.random(number)]


def by_arms(*assignments: Assignment) -> dict[tuple[str, Arms], Assignment]:
    """An episode's assignments."""
    return {one.key: one for one in assignments}


def lived(
    agent: str,
    version: str,
    runs: Sequence[Run],
    now: float = float("inf"),
    share: float = 0.5,
    experiment: str = "e",
    **changes: Any,
) -> list[WindowEpisode]:
    """What is known at a time of an agent's episodes; an unfinished one has earned its part of the return."""
    shares = {"1": 1.0 - share, "2": share}
    found = []
    for begin, length, total in runs:
        if begin > now:
            break
        ended = begin + length <= now
        part = total if ended else total * (now - begin) / length
        told = {
            "explored": [False],
            "agent_id": agent,
            "began": at(begin),
            "decided_at": [at(begin)],
            "ended": ended,
            "terminated": ended,
        }
        known = episode([([0.0] * 4, 1, 1.0, part)], version, **(told | changes))
        known.assignments = by_arms(Assignment(experiment, version, shares, at(begin)))
        found.append(known)
    return found
