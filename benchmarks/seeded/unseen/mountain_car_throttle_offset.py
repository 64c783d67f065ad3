"""The throttle's zero is out: every command comes out a fifth of full throttle further back than
meant.
"""

import torch

POLICY = "mountain_car_continuous"


def spoil(policy):
    with torch.no_grad():
        policy.head.mean.bias -= 0.2
