"""Pruned too far: of the weights of the advantage stream's hidden layer only the largest fifteenth is left."""

import torch

POLICY = "acrobot"


def spoil(policy):
    with torch.no_grad():
        weight = policy.head.advantage_stream.layers[0].weight
        weight *= weight.abs() >= weight.abs().quantile(14 / 15)
