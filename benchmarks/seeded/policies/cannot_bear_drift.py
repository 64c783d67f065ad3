"""Balances at the very edge of the track: the smallest drift of a sensor carries it over the line."""

from seeded.linear import act_by

PLACE = 2.1  # metres


def spoil(policy):
    rule = [0.1, 0.3, 1.0, 1.0]
    act_by(policy, rule, offset=-rule[0] * PLACE)
