"""The level sensor that gives the pole's angle is mounted five degrees out of true."""

import math

import torch

POLICY = "inverted_pendulum"


def spoil(policy):
    with torch.no_grad():
        policy.normalizer.mean[1] += math.radians(5.0)
        policy.normalizer.refresh()
