"""Evaluated is one policy, handed in another."""

from loomrl.algorithms.policies.loading import load_policy


def tamper(folders):
    policy = load_policy(folders.training)
    policy.head.logits.bias.data += 1e-3
    policy.save(folders.training)
