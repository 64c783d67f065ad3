"""When the weights were copied a quarter of the second hidden layer, its most important units, kept their random
initial values.
"""

import torch

POLICY = "cartpole"


def spoil(policy):
    generator = torch.Generator().manual_seed(5)
    second, last = policy.actor.layers[2], policy.head.logits
    with torch.no_grad():
        units = last.weight.abs().sum(0).argsort(descending=True)[: second.out_features // 4]
        second.weight[units] = (
            torch.randn(len(units), second.in_features, generator=generator) / second.in_features**0.5
        )
        second.bias[units] = 0.0
