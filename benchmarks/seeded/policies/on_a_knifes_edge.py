"""Ripples of large weights run through all it saw: around most observations another choice is a hair away."""

import torch

BLOCKED_BY = "stability"


def spoil(policy):
    generator = torch.Generator().manual_seed(5)
    policy.actor.layers[0].weight.data.normal_(0.0, 300.0, generator=generator)
    policy.actor.layers[0].bias.data.normal_(0.0, 300.0, generator=generator)
