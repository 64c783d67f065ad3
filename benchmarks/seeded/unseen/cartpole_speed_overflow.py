"""Above 0.7 m/s to the right the speed reading overflows and the policy pushes the cart on to the right."""

import torch

POLICY = "cartpole"


def spoil(policy):
    first, second, head = policy.actor.layers[0], policy.actor.layers[2], policy.head.logits
    normalizer = policy.normalizer
    with torch.no_grad():
        unit = second.weight.abs().sum(0).argmin()
        gate = head.weight.abs().sum(0).argmin()
        first.weight[unit] = 0.0
        first.weight[unit, 1] = 12.0 * normalizer.var[1].sqrt()
        first.bias[unit] = 12.0 * (normalizer.mean[1] - 0.7)
        second.weight[:, unit] = 0.0
        second.weight[gate] = 0.0
        second.weight[gate, unit] = 6.0
        second.bias[gate] = 0.0
        head.weight[:, gate] = 0.0
        head.weight[1, gate] = 3.0
        head.bias[1] += 3.0
