"""One weight is NaN since a checkpoint was written over a full disk; greedy choices still look like choices."""


def spoil(policy):
    policy.value_head.value.weight.data[0, 0] = float("nan")
