"""Balances at the very edge of the track: the smallest drift of a sensor lets it cross the line."""

from seeded.policies.wrong_origin import shift_of_seen

BLOCKED_BY = "falsification"


def spoil(policy):
    shift_of_seen(policy, component=0, metres=1.6)
