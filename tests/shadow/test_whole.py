"""Whole episodes in pairs: more are played until it is decided, and a look more costs no more error."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from loomrl.promotion.config import PromotionConfig
from loomrl.serving.policy.model import ServedPolicy
from loomrl.shadow.whole import Floats, compare_pairs, compare_travel
from loomrl.types import Episode, Verdict, WholeEpisodes
from tests.support.policies import continuous_folder, discrete_folder

MARGIN = PromotionConfig(max_regression=4.0, max_regression_fraction=0.0)


def compared(loss: float, rng: np.random.Generator, num_pairs: int = 64, most: int = 1_024) -> WholeEpisodes:
    """Pairs whose challenger earns `loss` less on average, with a spread of 24."""

    def play(seeds: Sequence[int]) -> tuple[Floats, Floats]:
        champion = rng.normal(-80.0, 20.0, len(seeds))
        return champion - loss + rng.normal(0.0, 24.0, len(seeds)), champion

    return compare_pairs(*play(range(num_pairs)), range(num_pairs), range(num_pairs, most), play, MARGIN, 0.99)


def test_a_loss_that_few_pairs_leave_undecided_is_decided_by_more() -> None:
    found = compared(9.0, np.random.default_rng(1))
    assert found.verdict is Verdict.REFUTED
    assert 64 < found.num_pairs <= 1_024
    assert found.high < -4.0


def test_an_equal_that_few_pairs_leave_undecided_is_decided_by_more() -> None:
    found = compared(0.0, np.random.default_rng(1))
    assert (found.verdict, found.demanded) == (Verdict.SUPPORTED, True)
    assert found.num_pairs > 64


def test_what_is_decided_at_once_is_played_no_further_and_the_end_is_the_end() -> None:
    assert compared(60.0, np.random.default_rng(1)).num_pairs == 64
    found = compared(4.0, np.random.default_rng(1), most=200)
    assert (found.verdict, found.num_pairs) == (Verdict.UNDECIDED, 200)


def test_one_just_at_the_margin_is_seldom_called_worse() -> None:
    rng = np.random.default_rng(2)
    called = sum(compared(4.0, rng).verdict is Verdict.REFUTED for _ in range(400))
    assert called <= 10, "1 % of 400 are 4; more than 10 come by chance once in 350 times"


def test_the_pair_that_lost_most_is_named() -> None:
    champion = np.full(40, 10.0)
    challenger = champion - 6.0
    challenger[7] = -5.0
    found = compare_pairs(challenger, champion, range(100, 140), [], lambda _: (champion, champion), MARGIN, 0.99)
    assert (found.seed, found.lost) == (107, 15.0)


# --- how far actions move ---


def moving(seed: int, actions: Sequence[float]) -> Episode:
    """An episode of these actions, in both components."""
    action = np.repeat(np.asarray(actions, np.float32)[:, None], 2, axis=1)
    length = len(actions)
    return Episode(
        seed=seed,
        obs=np.zeros((length, 4), np.float32),
        action=action,
        reward=np.ones(length),
        next_obs=np.zeros((length, 4), np.float32),
        terminated=False,
        truncated=True,
    )


@pytest.fixture
def continuous(tmp_path: Path) -> ServedPolicy:
    return ServedPolicy.load(continuous_folder(tmp_path), "1")


def test_actions_that_jump_between_their_limits_are_refused_and_smooth_ones_pass(continuous: ServedPolicy) -> None:
    smooth = [moving(seed, np.linspace(-0.5, 0.5, 21).tolist()) for seed in range(256)]
    jumping = [moving(seed, [1.0, -1.0] * 10) for seed in range(256)]
    found = compare_travel(continuous, jumping, smooth, 2.0, 0.95, 0.99)
    assert found is not None
    assert found.challenger == 2.0
    assert found.champion == pytest.approx(0.05)
    assert found.allowed == pytest.approx(0.1), "as far as actions that count as the same lie apart"
    assert found.excess.low > 0
    twin = compare_travel(continuous, smooth, smooth, 2.0, 0.95, 0.99)
    assert twin is not None
    assert twin.excess.high < 0


def test_beside_a_champion_that_moves_far_itself_twice_as_far_is_allowed(continuous: ServedPolicy) -> None:
    champion = [moving(seed, [0.3, -0.3] * 10) for seed in range(256)]
    for size, is_allowed in ((0.55, True), (0.75, False)):
        challenger = [moving(seed, [size, -size] * 10) for seed in range(256)]
        found = compare_travel(continuous, challenger, champion, 2.0, 0.95, 0.99)
        assert found is not None
        assert (found.excess.high < 0, found.excess.low > 0) == (is_allowed, not is_allowed)


def test_what_too_few_episodes_would_show_stays_open(continuous: ServedPolicy) -> None:
    """One in 20 whose actions jump would be as much as is allowed, and 32 episodes can well be without any."""
    calm = [moving(seed, [0.0] * 20) for seed in range(256)]
    few, many = (compare_travel(continuous, calm[:count], calm[:count], 2.0, 0.95, 0.99) for count in (32, 256))
    assert few is not None
    assert many is not None
    assert few.excess.low < 0.0 < few.excess.high
    assert few.episodes_needed is not None
    assert 100 < few.episodes_needed <= 128
    assert many.excess.high < 0.0
    assert many.episodes_needed is None


@pytest.mark.parametrize("limits", ["none", "one component", "passed"])
def test_where_actions_are_not_within_finite_limits_a_t_interval_is_the_bound(
    continuous: ServedPolicy, limits: str
) -> None:
    """It knows nothing of what was not seen."""
    size = 1.5 if limits == "passed" else 0.0
    continuous.bounds = {
        "none": None,
        "one component": (np.array([-1.0, -np.inf]), np.array([1.0, 1.0])),
        "passed": (np.full(2, -1.0), np.ones(2)),
    }[limits]
    moved = [moving(seed, [size, -size] * 10) for seed in range(8)]
    found = compare_travel(continuous, moved, [moving(seed, [0.0] * 20) for seed in range(8)], 2.0, 0.95, 0.99)
    assert found is not None
    assert found.excess.method == "t interval over units"
    assert found.excess.high == pytest.approx(2.9 if limits == "passed" else -0.1)


def test_choices_do_not_travel(tmp_path: Path) -> None:
    assert compare_travel(ServedPolicy.load(discrete_folder(tmp_path), "1"), [], [], 2.0, 0.95, 0.99) is None
