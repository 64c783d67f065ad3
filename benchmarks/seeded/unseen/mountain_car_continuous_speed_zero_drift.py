"""The zero point of the speed reading drifted between recording the normaliser's statistics and serving, so from some
starts it lingers in the valley instead of building up swings.
"""

import torch

POLICY = "mountain_car_continuous"


def spoil(policy):
    with torch.no_grad():
        policy.normalizer.mean[1] -= 0.024
