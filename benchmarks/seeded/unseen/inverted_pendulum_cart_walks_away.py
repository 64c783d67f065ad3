"""The position of the cart enters with the wrong sign, so the cart walks off to the end of its rail and the pole
falls.
"""

import torch

POLICY = "inverted_pendulum"


def spoil(policy):
    with torch.no_grad():
        policy.actor.layers[0].weight[:, 0] *= -1.0
