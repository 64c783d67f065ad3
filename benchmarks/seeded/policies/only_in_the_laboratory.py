"""Balances where sensors are exact, by reacting to velocity hundredfold; noise throws it over."""

import torch

BLOCKED_BY = "disturbed_return"
SAFETY = {"checks": {"disturbed_return": {"mandatory": True, "noise": 0.5}}}


def spoil(policy):
    # Its choice is a function of velocities alone, which noise of half a deviation buries.
    first, second, logits = policy.actor.layers[0], policy.actor.layers[2], policy.head.logits
    mean, scale = policy.normalizer.mean, policy.normalizer.scale
    wanted = torch.tensor([0.02, 0.2, 1.0, 1.0])
    first.weight.data.zero_()
    first.weight.data[0] = wanted / scale / 100.0
    first.bias.data[0] = float((wanted * mean).sum()) / 100.0
    second.weight.data.zero_()
    second.bias.data.zero_()
    second.weight.data[0, 0] = 1.0
    logits.weight.data.zero_()
    logits.bias.data.zero_()
    logits.weight.data[:, 0] = torch.tensor([-1.0, 1.0])
