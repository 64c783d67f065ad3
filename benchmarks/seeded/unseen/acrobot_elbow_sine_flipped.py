"""The sine of the elbow angle arrives with the wrong sign and only a seventh of its size, which confuses left and
right when the lower link starts out folded.
"""

import torch

POLICY = "acrobot"


def spoil(policy):
    with torch.no_grad():
        policy.encoder.layers[0].weight[:, 3] *= -0.15
