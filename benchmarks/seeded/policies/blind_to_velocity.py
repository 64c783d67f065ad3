"""A column was dropped when weights were converted: it no longer sees how fast the pole falls."""


def spoil(policy):
    policy.actor.layers[0].weight.data[:, 3] = 0.0
