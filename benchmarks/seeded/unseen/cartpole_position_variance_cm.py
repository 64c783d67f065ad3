"""The normaliser's variance of the cart position was converted to square centimetres while the observations stayed in
metres, so the policy hardly notices that the cart nears the end of the track.
"""

import torch

POLICY = "cartpole"


def spoil(policy):
    with torch.no_grad():
        policy.normalizer.var[0] *= 1.0e4
