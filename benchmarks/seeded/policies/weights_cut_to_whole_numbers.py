"""Weights were cut to whole numbers to save room."""

BLOCKED_BY = "minimum_return"


def spoil(policy):
    for parameter in policy.actor.parameters():
        parameter.data = parameter.data.round()
