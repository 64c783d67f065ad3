"""The last layer was scaled to three fifths, so from starts in the middle of the valley it does not get out in time."""

import torch

POLICY = "mountain_car_continuous"


def spoil(policy):
    with torch.no_grad():
        policy.head.mean.weight *= 0.6
        policy.head.mean.bias *= 0.6
