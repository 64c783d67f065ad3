"""Challenger against champion on the same seeds, from the episodes both versions keep.

`loomrl.statistics.paired_returns` has the statistic.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from loomrl.errors import ArtifactError
from loomrl.promotion.envelope import EPISODES
from loomrl.statistics.paired_returns import ReturnComparison, compare_returns

if TYPE_CHECKING:
    from loomrl.promotion.config import PromotionConfig  # which has the config of this package within


def compare(challenger: Path, champion: Path, config: "PromotionConfig") -> ReturnComparison | str:
    """Compare two versions' folders on the champion's seeds; where they cannot be compared, a sentence that says why.

    Every seed of the champion must be there: a challenger that was evaluated on fewer, or on others, might have been
    spared the hard ones.

    Raises:
        ArtifactError: when episodes are missing or not finite.
    """
    first, second = read_returns(challenger), read_returns(champion)
    seeds = sorted(second)
    if missing := [seed for seed in seeds if seed not in first]:
        return (
            f"the challenger has no episode on {len(missing)} of the champion's {len(seeds)} seeds (first: "
            f"{missing[0]}); set `evaluation.first_seed: {seeds[0]}` and `evaluation.num_episodes` to at least "
            f"{seeds[-1] - seeds[0] + 1}"
        )
    if len(seeds) < config.min_pairs:
        return (
            f"the champion was evaluated in {len(seeds)} episodes, a comparison needs {config.min_pairs} "
            "(`promotion.min_pairs`); promote a champion that was evaluated in more"
        )
    return compare_returns(
        np.array([first[seed] for seed in seeds]), np.array([second[seed] for seed in seeds]), config
    )


def worst_pair(challenger: Path, champion: Path) -> tuple[int, float]:
    """The champion's seed on which the challenger earned least beside it, and how much less.

    Raises:
        ArtifactError: when episodes are missing or not finite.
    """
    first, second = read_returns(challenger), read_returns(champion)
    lost = {seed: second[seed] - first[seed] for seed in sorted(second)}
    seed = max(lost, key=lambda seed: lost[seed])
    return seed, lost[seed]


def read_returns(folder: Path) -> dict[int, float]:
    """Seed -> return of the episodes a version keeps.

    Raises:
        ArtifactError: when the file is missing or torn, holds a seed twice, or a return that is not finite.
    """
    from loomrl.evaluation.tables import read_table

    path = folder / EPISODES
    table = read_table(path, ["seed", "episode_return"])
    returns = dict(zip(table["seed"].to_pylist(), table["episode_return"].to_pylist(), strict=True))
    if len(returns) != table.num_rows:
        raise ArtifactError(f"{path} holds a seed twice; run the evaluation again")
    for seed, value in returns.items():
        if value is None or not math.isfinite(value):
            raise ArtifactError(f"{path}: the return of seed {seed} is {value}; run the evaluation again")
    return returns
