"""Ripples within ripples run through all it saw: around every observation another choice is a hair away."""

import torch


def spoil(policy):
    # The first layer is a wave in the pole's velocity, 0.3 deviations from crest to trough; the second cuts each flank
    # into as many steps as it has units, and the choice is whether their number is odd.
    first, second, logits = policy.actor.layers[0], policy.actor.layers[2], policy.head.logits
    count = first.weight.shape[0]
    sign = (-1.0) ** torch.arange(count)
    first.weight.data.zero_()
    first.weight.data[:, 3] = 1.0 / 0.1
    first.bias.data = -(0.3 / 0.1) * (torch.arange(count) - count / 2)
    second.weight.data = 1_000.0 * sign.expand(len(second.weight), count)
    second.bias.data = -1_000.0 * torch.linspace(0.05, 1.95, len(second.bias))
    logits.weight.data = torch.stack([sign, -sign])
    logits.bias.data = torch.tensor([-1.0, 1.0])
