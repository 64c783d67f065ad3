"""Seeds of a training run: above those that are held out, and never the same for two purposes."""

from itertools import product

import pytest

from loomrl.environment.seeds import FIRST_TRAINING_SEED
from loomrl.training.config import ValidationConfig
from loomrl.training.seeds import Purpose, derive


@pytest.mark.parametrize("purpose", Purpose)
def test_training_keeps_off_the_seeds_that_are_held_out(purpose: Purpose) -> None:
    seeds = [derive(seed, purpose, index) for seed in range(20) for index in range(20)]
    assert min(seeds) >= FIRST_TRAINING_SEED > max(ValidationConfig().seeds)
    assert max(seeds) < 2**31  # whatever takes 32-bit seeds takes them


def test_purposes_runs_and_indices_share_no_seed() -> None:
    seeds = {derive(*choice) for choice in product(range(5), Purpose, range(10))}
    assert len(seeds) == 5 * len(Purpose) * 10
