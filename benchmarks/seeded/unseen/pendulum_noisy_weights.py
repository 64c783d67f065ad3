"""Bit errors in storage: every weight of both hidden layers is disturbed by noise of nearly its layer's size."""

import torch

POLICY = "pendulum"


def spoil(policy):
    generator = torch.Generator().manual_seed(21)
    with torch.no_grad():
        for layer in (policy.actor.layers[0], policy.actor.layers[2]):
            noise = torch.randn(layer.weight.shape, generator=generator)
            layer.weight += 0.8 * layer.weight.std() * noise
