"""The wires are crossed: left is right."""


def spoil(policy):
    policy.head.logits.weight.data = policy.head.logits.weight.data.flip(0)
    policy.head.logits.bias.data = policy.head.logits.bias.data.flip(0)
