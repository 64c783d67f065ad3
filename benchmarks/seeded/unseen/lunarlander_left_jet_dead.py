"""The output of one side engine died, so the lander cannot turn back from one side."""

import torch

POLICY = "lunarlander"


def spoil(policy):
    with torch.no_grad():
        policy.head.logits.weight[1] = 0.0
        policy.head.logits.bias[1] = -30.0
