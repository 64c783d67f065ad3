"""The normaliser's statistics are those of a track that begins elsewhere: it balances two metres off the middle."""

BLOCKED_BY = "statistical_limits"


def spoil(policy):
    shift_of_seen(policy, component=0, metres=2.2)


def shift_of_seen(policy, component, metres):
    """As if the component were smaller by so much."""
    first, scale = policy.actor.layers[0], policy.normalizer.scale
    first.bias.data -= first.weight.data[:, component] * float(scale[component]) * metres
