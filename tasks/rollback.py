"""Rollback: an operation of its own, recorded like a promotion."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from loomrl.promotion import promote


@task(name="rollback", cache_policy=NO_CACHE)
def roll_back(policy: str, reason: str, person: str, to: str | None) -> str:
    """Move the aliases back and record it; returns what happened in one sentence."""
    with promote.exclusive(policy):
        return promote.rollback(policy, reason, person, to).message
