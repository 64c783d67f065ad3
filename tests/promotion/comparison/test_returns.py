"""The paired comparison, by hand-computed numbers and by its error rates."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from loomrl.errors import ArtifactError
from loomrl.promotion.comparison.returns import compare, worst_pair
from loomrl.promotion.config import PromotionConfig
from loomrl.statistics.paired_returns import ReturnComparison, compare_returns
from loomrl.types import Verdict
from tests.support.policy_versions import FIRST_SEED, make_artifacts

STRICT = PromotionConfig(max_regression=0, max_regression_fraction=0)


def test_bounds_equal_a_hand_computed_t_interval() -> None:
    # differences 1, 2, 3, 4: mean 2.5, s = sqrt(5/3), t(3, 0.95) = 2.353363
    found = compare_returns(np.array([2.0, 4, 6, 8]), np.array([1.0, 2, 3, 4]), STRICT)
    reach = 2.353363434801 * math.sqrt(5 / 3) / 2
    assert (found.num_pairs, found.difference) == (4, 2.5)
    assert found.low == pytest.approx(2.5 - reach, rel=1e-9)
    assert found.high == pytest.approx(2.5 + reach, rel=1e-9)
    assert found.verdict is Verdict.SUPPORTED


def test_equal_perfect_policies_pass_without_any_allowance() -> None:
    found = compare_returns(np.full(100, 500.0), np.full(100, 500.0), STRICT)
    assert (found.low, found.high, found.verdict) == (0.0, 0.0, Verdict.SUPPORTED)


def test_a_constant_loss_is_exact_although_its_mean_rounds() -> None:
    champion = np.linspace(0, 1, 7)
    found = compare_returns(champion - 0.25, champion, PromotionConfig(max_regression=0.25))
    assert found.verdict is Verdict.SUPPORTED
    found = compare_returns(champion - 0.25, champion, PromotionConfig(max_regression=0.2))
    assert found.verdict is Verdict.REFUTED


def test_a_worse_challenger_is_refuted_with_its_numbers() -> None:
    rng = np.random.default_rng(0)
    champion = rng.normal(500, 5, 100)
    found = compare_returns(champion - 60 + rng.normal(0, 10, 100), champion, PromotionConfig())
    assert found.verdict is Verdict.REFUTED
    assert found.high < -found.margin
    assert "worse than the champion: mean return" in found.sentence()
    assert "on the same 100 seeds" in found.sentence()


def test_a_noisy_equal_is_undecided_without_allowance_and_says_what_would_decide() -> None:
    rng = np.random.default_rng(3)
    champion = rng.normal(200, 50, 20)
    found = compare_returns(champion + rng.normal(-4, 40, 20), champion, PromotionConfig(max_regression=10))
    assert found.verdict is Verdict.UNDECIDED
    assert found.pairs_needed is not None
    assert found.pairs_needed > 20
    assert f"about {found.pairs_needed} episodes would decide" in found.sentence()


def test_the_larger_allowance_counts_and_holds_for_negative_returns() -> None:
    champion = np.full(10, -200.0)
    assert compare_returns(champion, champion, PromotionConfig(max_regression=3)).margin == 10
    assert compare_returns(champion, champion, PromotionConfig(max_regression=30)).margin == 30


def test_error_rates() -> None:
    """At the margin itself at most 5 % pass (the test's level); equals pass nearly always once episodes suffice."""
    rng = np.random.default_rng(7)
    margin = PromotionConfig(max_regression=20, max_regression_fraction=0)

    def passed(true_difference: float) -> float:
        champion = rng.normal(200, 60, (1_000, 100))
        challenger = champion + rng.normal(true_difference, 60, (1_000, 100))
        verdicts = [compare_returns(*pair, margin).verdict for pair in zip(challenger, champion, strict=True)]
        return float(np.mean([verdict is Verdict.SUPPORTED for verdict in verdicts]))

    assert passed(-20.0) < 0.07
    assert passed(0.0) > 0.9


def test_the_champion_s_seeds_count(tmp_path: Path) -> None:
    more = make_artifacts(tmp_path / "a", returns=[10.0] * 30 + [0.0] * 5) / "evaluation"
    champion = make_artifacts(tmp_path / "b", returns=[10.0] * 30) / "evaluation"
    found = compare(more, champion, STRICT)
    assert isinstance(found, ReturnComparison)
    assert (found.num_pairs, found.difference) == (30, 0)
    assert "no episode on 5 of the champion's 35 seeds" in str(compare(champion, more, STRICT))
    demanding = PromotionConfig(min_pairs=31)
    assert "evaluated in 30 episodes, a comparison needs 31" in str(compare(more, champion, demanding))


@pytest.mark.parametrize(
    ("seeds", "returns", "message"),
    [
        ([FIRST_SEED, FIRST_SEED], [1.0, 1.0], "a seed twice"),
        ([FIRST_SEED, FIRST_SEED + 1], [1.0, float("nan")], f"return of seed {FIRST_SEED + 1} is nan"),
    ],
)
def test_unusable_episodes_are_named(tmp_path: Path, seeds: list[int], returns: list[float], message: str) -> None:
    good = make_artifacts(tmp_path / "a") / "evaluation"
    (tmp_path / "b").mkdir()
    pq.write_table(pa.table({"seed": seeds, "episode_return": returns}), tmp_path / "b" / "episodes.parquet")
    with pytest.raises(ArtifactError, match=message):
        compare(good, tmp_path / "b", STRICT)


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    good = make_artifacts(tmp_path / "a") / "evaluation"
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "episodes.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(ArtifactError, match=r"episodes\.parquet cannot be read"):
        compare(good, tmp_path / "b", STRICT)


@pytest.mark.parametrize("chance", [0.01, 0.05])
def test_a_challenger_with_a_rare_ruin_is_seldom_called_not_worse_where_the_range_is_known(chance: float) -> None:
    """Worse than is allowed by a hair; the t-test calls it not worse in 38 % and in 11 % of such comparisons."""
    rng = np.random.default_rng(21)
    margin = 0.999 * chance * 400.0
    allowed = PromotionConfig(max_regression=margin, max_regression_fraction=0, return_range=(0.0, 500.0))
    claimed = [
        compare_returns(np.where(rng.random(100) < chance, 50.0, 450.0), np.full(100, 450.0), allowed).verdict
        for _ in range(200)
    ]
    assert np.mean([verdict is Verdict.SUPPORTED for verdict in claimed]) <= 0.09


def test_with_a_range_equals_pass_and_worse_ones_are_refuted() -> None:
    rng = np.random.default_rng(22)
    allowed = PromotionConfig(max_regression=25.0, return_range=(0.0, 500.0))
    champion = 450.0 + 10.0 * rng.normal(size=400)
    for loss, verdict in ((0.0, Verdict.SUPPORTED), (60.0, Verdict.REFUTED)):
        found = compare_returns(champion - loss + 10.0 * rng.normal(size=400), champion, allowed)
        assert (found.verdict, found.low <= -loss <= found.high) == (verdict, True)


def test_a_range_of_returns_goes_up() -> None:
    with pytest.raises(ValueError, match="return_range .* must go from the least to the greatest"):
        PromotionConfig(return_range=(5.0, 5.0))


def test_the_pair_in_which_most_is_lost_is_named_by_its_seed(tmp_path: Path) -> None:
    champion = make_artifacts(tmp_path / "champion", returns=[500.0, 400.0, 300.0])
    challenger = make_artifacts(tmp_path / "challenger", returns=[450.0, 420.0, 10.0, 0.0])  # one seed more
    assert worst_pair(challenger / "evaluation", champion / "evaluation") == (FIRST_SEED + 2, 290.0)
