"""The export wrote the square second hidden layer transposed, as the other framework stores it."""

import torch

POLICY = "mountain_car_continuous"


def spoil(policy):
    with torch.no_grad():
        weight = policy.actor.layers[2].weight
        weight.copy_(weight.T.clone())
