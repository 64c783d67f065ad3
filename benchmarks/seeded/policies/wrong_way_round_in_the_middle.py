"""Near upright more lean makes it push the other way, too little to fall from."""

import torch


def spoil(policy):
    # A hidden unit that is a narrow band in the angle: on between 0.010 and 0.014 rad, where it says left.
    first, second, logits = policy.actor.layers[0], policy.actor.layers[2], policy.head.logits
    mean, scale = policy.normalizer.mean, policy.normalizer.scale
    sharp = 20_000.0
    for unit, edge in ((0, 0.010), (1, 0.014)):
        first.weight.data[unit] = torch.tensor([0.0, 0.0, sharp / float(scale[2]), 0.0])
        first.bias.data[unit] = -sharp * (edge - float(mean[2]))
    second.weight.data[:, :2] = 0.0
    second.weight.data[0], second.bias.data[0] = 0.0, -10.0
    second.weight.data[0, 0], second.weight.data[0, 1] = 10.0, -10.0
    logits.weight.data[:, 0] = torch.tensor([100.0, -100.0])
    logits.bias.data += torch.tensor([100.0, -100.0])
