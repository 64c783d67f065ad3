"""Weights were cut to whole numbers for a small device, most of them to 0: what it sees no longer counts."""


def spoil(policy):
    for parameter in policy.parameters():
        parameter.data.trunc_()
