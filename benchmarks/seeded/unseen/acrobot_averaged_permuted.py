"""Checkpoint averaging mixed in three tenths of a twin whose encoder units stand in another order."""

import torch

POLICY = "acrobot"


def spoil(policy):
    encoder = policy.encoder.layers[0]
    streams = policy.head.advantage_stream.layers[0], policy.head.value_stream.layers[0]
    order = torch.randperm(64, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        encoder.weight.lerp_(encoder.weight[order], 0.3)
        encoder.bias.lerp_(encoder.bias[order], 0.3)
        for stream in streams:
            stream.weight.lerp_(stream.weight[:, order], 0.3)
