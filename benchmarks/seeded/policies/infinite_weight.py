"""The critic diverged in its last update: a value is infinite, and nobody looks at values."""


def spoil(policy):
    policy.value_head.value.bias.data[0] = float("inf")
