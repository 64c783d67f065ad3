"""Over-large weights of the last layer make the force jump between its limits, so the cart shakes and a little noise
drops the pole.
"""

import torch

POLICY = "inverted_pendulum"


def spoil(policy):
    with torch.no_grad():
        policy.head.mean.weight *= 10.0
        policy.head.mean.bias *= 10.0
