"""Cross-talk between two channels: three tenths of the pole's rate is subtracted from the cart speed that the first
layer sees.
"""

import torch

POLICY = "inverted_pendulum"


def spoil(policy):
    with torch.no_grad():
        weight, spread = policy.actor.layers[0].weight, policy.normalizer.var.sqrt()
        weight[:, 3] -= 0.3 * weight[:, 2] * (spread[3] / spread[2]).float()
