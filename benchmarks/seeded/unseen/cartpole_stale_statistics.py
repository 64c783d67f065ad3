"""The normaliser's statistics are those of the first minutes of training, when the cart never got far: everything seems
about the wrong size.
"""

import torch

POLICY = "cartpole"


def spoil(policy):
    with torch.no_grad():
        policy.normalizer.mean.zero_()
        policy.normalizer.var.copy_(torch.tensor([0.008, 0.35, 0.009, 0.5], dtype=torch.float64))
        policy.normalizer.refresh()
