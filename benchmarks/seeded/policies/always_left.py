"""Pushes left whatever it sees."""

import torch


def spoil(policy):
    policy.head.logits.weight.data.zero_()
    policy.head.logits.bias.data = torch.tensor([1.0, 0.0])
