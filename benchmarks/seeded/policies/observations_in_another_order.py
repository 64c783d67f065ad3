"""Another team's sensors come in another order: position and angle are mixed up."""

BLOCKED_BY = "minimum_return"


def spoil(policy):
    weight = policy.actor.layers[0].weight.data
    policy.actor.layers[0].weight.data = weight[:, [2, 3, 0, 1]].clone()
