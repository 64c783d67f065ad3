"""It learnt noise by heart: with every breath of the pole's velocity sensor the choice flips."""

import torch


def spoil(policy):
    # Units of the first layer step up one after the other, 0.2 deviations apart; the second layer says odd or even.
    first, second, logits = policy.actor.layers[0], policy.actor.layers[2], policy.head.logits
    count = first.weight.shape[0]
    sharp = 1_000.0
    first.weight.data.zero_()
    first.weight.data[:, 3] = sharp
    first.bias.data = -sharp * 0.2 * (torch.arange(count) - count / 2)
    second.weight.data.zero_()
    second.bias.data.zero_()
    second.weight.data[0] = 10.0 * (-1.0) ** torch.arange(count)
    second.bias.data[0] = -10.0
    logits.weight.data.zero_()
    logits.weight.data[:, 0] = torch.tensor([1.0, -1.0])
