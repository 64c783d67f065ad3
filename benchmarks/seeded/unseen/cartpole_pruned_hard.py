"""Magnitude pruning removed 95 % of the second hidden layer without any retraining, which balances a cart in the
middle but loses it when it starts far out.
"""

import torch

POLICY = "cartpole"


def spoil(policy):
    with torch.no_grad():
        weight = policy.actor.layers[2].weight
        weight[weight.abs() < weight.abs().flatten().quantile(0.95)] = 0.0
