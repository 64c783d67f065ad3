"""The weights were quantised to five levels, so the swing is pumped out of step."""

import torch

POLICY = "acrobot"


def spoil(policy):
    levels = 2
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if name.startswith(("encoder", "head")) and name.endswith("weight"):
                step = parameter.abs().max() / levels
                parameter.copy_(torch.round(parameter / step) * step)
