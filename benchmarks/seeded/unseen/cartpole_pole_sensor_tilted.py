"""The pole angle was recorded with a sensor mounted 1.6 degrees askew, so the policy balances about a leaning pole and
creeps to one end of the track once something has moved it there.
"""

import torch

POLICY = "cartpole"


def spoil(policy):
    with torch.no_grad():
        policy.normalizer.mean[2] -= 0.028
