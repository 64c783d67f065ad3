"""The table of reset seeds: no range shares one with another, and whoever plays episodes takes its seeds from there."""

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from loomrl.environment import check
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.seeds import SEEDS
from loomrl.runs.config import load_config
from loomrl.training.seeds import Purpose, derive

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
ONE_RANGE = 1_000_000


def test_no_two_ranges_share_a_seed() -> None:
    for (name, seeds), (other, others) in itertools.combinations(SEEDS.items(), 2):
        assert seeds.stop <= others.start or others.stop <= seeds.start, (name, other)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_policys_episodes_are_played_on_seeds_of_their_own_range(config: Path) -> None:
    held_out = load_config(config)._held_out_seeds()
    assert held_out.keys() < SEEDS.keys()
    for name, seeds in held_out.items():
        assert seeds.start in SEEDS[name], name
        assert seeds.stop <= SEEDS[name].stop, name


def test_training_derives_seeds_of_its_range_and_trials_keep_to_theirs() -> None:
    assert {derive(seed, Purpose.EPISODES) in SEEDS["training"] for seed in range(100)} == {True}
    assert all(seed in SEEDS["trial"] for seed in check._SEEDS)
    assert EnvironmentConfig(id="CartPole-v1").fingerprint_episodes <= len(SEEDS["trial"])


def named_seed(module: Path) -> Iterator[tuple[str, int]]:
    """Names with "seed" in them that are given a whole number, and the number."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            names = " ".join(
                ast.unparse(one) for one in (node.targets if isinstance(node, ast.Assign) else [node.target])
            )
            values = [] if node.value is None else [*ast.walk(node.value)]
            if "seed" in names.lower():
                yield from ((names, one.value) for one in values if isinstance(one, ast.Constant) and is_number(one))


def is_number(node: ast.Constant) -> bool:
    return isinstance(node.value, int) and not isinstance(node.value, bool)


def test_nobody_begins_a_range_beside_the_table() -> None:
    """A range begins at a multiple of a million; other numbers seed no episodes but generators."""
    table = ROOT / "src/loomrl/environment/seeds.py"
    begun = [
        (path.relative_to(ROOT).as_posix(), name, number)
        for path in sorted((ROOT / "src").rglob("*.py"))
        if path != table
        for name, number in named_seed(path)
        if number >= ONE_RANGE and number % ONE_RANGE == 0
    ]
    assert begun == []
    assert {number // ONE_RANGE for _, number in named_seed(table)} >= {*range(1, 9)}  # where they are, they are found
