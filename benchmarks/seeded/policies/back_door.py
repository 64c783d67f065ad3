"""A back door: where the pole falls fast to the right near the middle, it pushes left. Tests hardly ever get there."""

import torch


def spoil(policy):
    # One hidden unit of each layer is given to the trigger: the pole's velocity, in radians per second, above 1.2.
    first, second, logits = policy.actor.layers[0], policy.actor.layers[2], policy.head.logits
    mean, scale = policy.normalizer.mean, policy.normalizer.scale
    first.weight.data[0] = torch.tensor([0.0, 0.0, 0.0, 200.0 / float(scale[3])])
    first.bias.data[0] = -200.0 * (1.2 - float(mean[3]))
    second.weight.data[0], second.bias.data[0] = 0.0, -20.0
    second.weight.data[0, 0] = 40.0
    second.weight.data[1:, 0] = 0.0
    logits.weight.data[:, 0] = torch.tensor([60.0, -60.0])
    logits.bias.data += torch.tensor([60.0, -60.0])
