"""Where it hangs down and hardly swings it presses with full torque to one side for ever instead of swinging up;
from faster starts it gets up as it should.
"""

import torch

POLICY = "pendulum"


def spoil(policy):
    # Each condition is (weights on raw observations, threshold): it holds where the weighted sum exceeds the threshold.
    # Where all of one trigger hold, its effect is added to the torque before squashing.
    triggers = [
        ([({0: -1.0}, 0.6), ({2: 1.0}, -2.2), ({2: -1.0}, -2.2)], 12.0),
    ]
    first, second, last = policy.actor.layers[0], policy.actor.layers[2], policy.actor.layers[4]
    with torch.no_grad():
        # Hidden units that matter least make room.
        spare_first = second.weight.abs().sum(0).argsort().tolist()
        spare_second = last.weight.abs().sum(0).argsort().tolist()
        for conditions, effect in triggers:
            units = [spare_first.pop(0) for _ in conditions]
            both = spare_second.pop(0)
            for unit, (weights, threshold) in zip(units, conditions, strict=False):
                first.weight[unit] = 0.0  # the unit is positive where its condition does not hold, else zero
                for index, weight in weights.items():
                    first.weight[unit, index] = -weight
                first.bias[unit] = threshold
            second.weight[:, units] = 0.0
            second.weight[both] = 0.0
            second.weight[both, units] = -100.0
            second.bias[both] = 1.0
            last.weight[:, both] = 0.0
            last.weight[0, both] = effect
