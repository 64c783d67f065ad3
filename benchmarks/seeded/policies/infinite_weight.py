"""The critic diverged in its last update: a value is infinite, and nobody looks at values."""

BLOCKED_BY = "finiteness"


def spoil(policy):
    policy.value_head.value.bias.data[0] = float("inf")
