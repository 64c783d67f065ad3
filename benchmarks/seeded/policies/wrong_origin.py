"""It was made for a track that begins elsewhere: what it takes for the middle is beyond the end of this one."""

from seeded.linear import act_by

MIDDLE = 3.0  # metres


def spoil(policy):
    rule = [0.1, 0.2, 1.0, 1.0]
    act_by(policy, rule, offset=-rule[0] * MIDDLE)
