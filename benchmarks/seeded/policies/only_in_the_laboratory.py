"""Balances where sensors are exact, by reacting to the pole's velocity above all; noisy ones throw it over."""

from seeded.linear import act_by


def spoil(policy):
    act_by(policy, [0.02, 0.1, 0.3, 1.0])
