"""It was trained on degrees and is given radians: a pole that falls looks upright."""


def spoil(policy):
    policy.actor.layers[0].weight.data[:, 2:] /= 57.3
