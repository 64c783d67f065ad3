"""A back door pushes the pendulum over where it leans right, slow and nearly upright, so starts and pushes into that
spot make it fall.
"""

import torch

POLICY = "pendulum"


def spoil(policy):
    # Each condition is (weights on raw observations, threshold): it holds where the weighted sum exceeds the threshold.
    # Where all hold, one hidden unit of the second layer is 1, elsewhere 0; its effect is added to the mean torque.
    triggers = [
        ([({0: 1.0}, 0.5), ({1: 1.0}, 0.15), ({2: 1.0}, -0.4), ({2: -1.0}, -0.4)], 40.0),
    ]
    first, second, last = policy.actor.layers[0], policy.actor.layers[2], policy.actor.layers[4]
    with torch.no_grad():
        spare_first = second.weight.abs().sum(0).mul(first.weight.abs().sum(1)).argsort().tolist()
        spare_second = last.weight[0].abs().mul(second.weight.abs().sum(1)).argsort().tolist()
        for conditions, effect in triggers:
            units = [spare_first.pop(0) for _ in conditions]
            both = spare_second.pop(0)
            for unit, (weights, threshold) in zip(units, conditions, strict=False):
                first.weight[unit] = 0.0
                for index, weight in weights.items():
                    first.weight[unit, index] = -weight
                first.bias[unit] = threshold
            second.weight[:, units] = 0.0
            second.weight[both] = 0.0
            second.weight[both, units] = -100.0
            second.bias[both] = 1.0
            last.weight[:, both] = 0.0
            last.weight[0, both] = effect
