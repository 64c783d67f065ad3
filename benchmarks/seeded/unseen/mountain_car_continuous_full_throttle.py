"""Over-large weights of the last layer turn every push into full throttle, so it burns many times the fuel."""

import torch

POLICY = "mountain_car_continuous"


def spoil(policy):
    with torch.no_grad():
        policy.head.mean.weight *= 100.0
        policy.head.mean.bias *= 100.0
