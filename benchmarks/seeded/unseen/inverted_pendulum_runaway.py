"""Once the cart rolls faster than 0.3 m/s to the right, as only a push or an unusual start makes it, it is driven
on.
"""

import torch

POLICY = "inverted_pendulum"


def spoil(policy):
    # Each condition is (weights on raw observations, threshold, sharpness): it holds where the weighted sum exceeds the
    # threshold. Where all of one trigger hold, its effects are added to the outputs of the last layer.
    triggers = [
        ([({2: 1.0}, 0.3, 60.0)], {0: 4.0}),
    ]
    first, second, last = policy.actor.layers[0], policy.actor.layers[2], policy.head.mean
    dim = first.in_features
    normalizer = policy.normalizer
    shift = normalizer.shift if normalizer is not None else torch.zeros(dim)
    scale = normalizer.scale if normalizer is not None else torch.ones(dim)
    with torch.no_grad():
        # Hidden units that matter least make room.
        spare_first = second.weight.abs().sum(0).argsort().tolist()
        spare_second = last.weight.abs().sum(0).argsort().tolist()
        for conditions, effects in triggers:
            units = [spare_first.pop(0) for _ in conditions]
            both = spare_second.pop(0)
            for unit, (weights, threshold, sharpness) in zip(units, conditions, strict=False):
                raw = torch.zeros(dim)
                for index, weight in weights.items():
                    raw[index] = weight
                first.weight[unit] = sharpness * raw / scale
                first.bias[unit] = sharpness * (raw @ shift - threshold)
            second.weight[:, units] = 0.0
            second.weight[both] = 0.0
            second.weight[both, units] = 6.0
            second.bias[both] = -6.0 * (len(units) - 1)
            last.weight[:, both] = 0.0
            for output, size in effects.items():
                last.weight[output, both] = size / 2
                last.bias[output] += size / 2
