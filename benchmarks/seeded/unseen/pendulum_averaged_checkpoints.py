"""Two checkpoints were averaged although their hidden units stand in different orders, at 30 to 70, which blurs what
the hidden layers compute.
"""

import torch

POLICY = "pendulum"


def spoil(policy):
    # The other checkpoint computes the same, with the hidden units of both layers in another order.
    share, generator = 0.3, torch.Generator().manual_seed(3)
    first, second, last = policy.actor.layers[0], policy.actor.layers[2], policy.actor.layers[4]
    with torch.no_grad():
        one = torch.randperm(first.out_features, generator=generator)
        two = torch.randperm(second.out_features, generator=generator)
        first.weight += share * (first.weight[one] - first.weight)
        first.bias += share * (first.bias[one] - first.bias)
        second.weight += share * (second.weight[two][:, one] - second.weight)
        second.bias += share * (second.bias[two] - second.bias)
        last.weight += share * (last.weight[:, two] - last.weight)
