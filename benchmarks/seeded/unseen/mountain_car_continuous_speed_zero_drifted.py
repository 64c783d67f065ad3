"""The zero of the speed in the normaliser drifted, so it takes standing still for moving and pushes against its
swing.
"""

import torch

POLICY = "mountain_car_continuous"


def spoil(policy):
    with torch.no_grad():
        policy.normalizer.mean[1] += 0.015
        policy.normalizer.refresh()
