"""Weights grew without a limit: the choice flips with every breath of the sensors."""

import torch

BLOCKED_BY = "robustness"


def spoil(policy):
    generator = torch.Generator().manual_seed(3)
    for layer in (policy.actor.layers[0], policy.actor.layers[2]):
        layer.weight.data.normal_(0.0, 60.0, generator=generator)
        layer.bias.data.normal_(0.0, 60.0, generator=generator)
    policy.head.logits.weight.data.normal_(0.0, 1.0, generator=generator)
