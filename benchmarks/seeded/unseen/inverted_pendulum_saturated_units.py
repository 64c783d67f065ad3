"""The first layer's weights blew up fifteenfold during fine-tuning and the next layer shrank to make up for it, so all
tanh units saturate as soon as the state leaves the resting point.
"""

import torch

POLICY = "inverted_pendulum"


def spoil(policy):
    with torch.no_grad():
        policy.actor.layers[0].weight *= 15.0
        policy.actor.layers[0].bias *= 15.0
        policy.actor.layers[2].weight /= 15.0
