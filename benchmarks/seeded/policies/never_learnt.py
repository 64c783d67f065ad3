"""The weights are random: nothing was learnt."""

import torch


def spoil(policy):
    generator = torch.Generator().manual_seed(7)
    for parameter in policy.actor.parameters():
        parameter.data.normal_(0.0, 0.3, generator=generator)
    policy.head.logits.weight.data.normal_(0.0, 0.3, generator=generator)
