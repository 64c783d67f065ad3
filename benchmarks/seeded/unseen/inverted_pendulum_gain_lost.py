"""The force was scaled to a fifth, so it holds a still pole but cannot catch one that was pushed."""

import torch

POLICY = "inverted_pendulum"


def spoil(policy):
    with torch.no_grad():
        policy.head.mean.weight *= 0.2
        policy.head.mean.bias *= 0.2
