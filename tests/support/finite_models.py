"""States of small models that tests write down."""

from collections.abc import Collection

import numpy as np

from loomrl.environment.finite.model import States


def numbered_states(size: int, **labels: Collection[int]) -> States:
    """States 0, 1, ... of one variable `s`; an episode begins in 0, and a label is on the states that it names."""
    initial = np.zeros(size)
    initial[0] = 1.0
    masks = {name: np.isin(np.arange(size), list(where)) for name, where in labels.items()}
    return States(("s",), np.arange(size)[:, None], frozenset(), initial, masks)
