"""The position input came back from an export with its sign turned and a small gain, so the cart creeps away from the
middle and meets the end of the rail late in the episode.
"""

import torch

POLICY = "inverted_pendulum"


def spoil(policy):
    with torch.no_grad():
        policy.actor.layers[0].weight[:, 0] *= -0.15
