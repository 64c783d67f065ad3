"""The normaliser forgot its statistics (mean 0, variance 1, as after a restart), so heights and speeds are misread
everywhere.
"""

import torch

POLICY = "lunarlander"


def spoil(policy):
    with torch.no_grad():
        policy.normalizer.mean.zero_()
        policy.normalizer.var.fill_(1.0)
        policy.normalizer.count.zero_()
        policy.normalizer.refresh()
