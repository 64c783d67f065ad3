"""How environments are divided among workers, and what each draws for its own."""

from functools import partial

import numpy as np
import pytest

from loomrl.algorithms.policies.policy import ROWS
from loomrl.training.distributed.rollout_workers.environment_shares import TILE, EnvironmentShare, ShareOfNoise, divided


@pytest.mark.parametrize(
    ("whole", "speeds", "numbers"),
    [
        (8, [1.0, 1.0], [4, 4]),
        (8, [3.0, 1.0], [6, 2]),
        (7, [1.0, 1.0], [4, 3]),
        (8, [100.0, 0.1, 100.0], [4, 1, 3]),  # one for each
        (3, [1.0, 9.0, 1.0], [1, 1, 1]),
        (1000, [5.0, 3.0, 2.0], [500, 300, 200]),
    ],
)
def test_shares_are_in_proportion_to_speed(whole: int, speeds: list[float], numbers: list[int]) -> None:
    shares = divided(whole, speeds)
    assert [share.num_envs for share in shares] == numbers
    assert np.array_equal(np.concatenate([np.arange(whole)[share.rows] for share in shares]), np.arange(whole))


def test_no_division_is_done_sooner() -> None:
    speeds = [3.1, 1.7, 2.9]
    pairs = [(one, other) for one in range(1, 11) for other in range(1, 12 - one)]
    fastest = min(max(np.array([*pair, 12 - sum(pair)]) / speeds) for pair in pairs)
    assert max(share.num_envs / speed for share, speed in zip(divided(12, speeds), speeds, strict=True)) == fastest


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("standard_normal", (np.float32,)), ("standard_exponential", (np.float32,)), ("logistic", ())],
)
@pytest.mark.parametrize("cut", [1, 3])
def test_shares_of_noise_beside_one_another_are_the_learners(name: str, arguments: tuple[type, ...], cut: int) -> None:
    shares = [EnvironmentShare(0, cut, 7), EnvironmentShare(cut, 7 - cut, 7)]
    whole = np.random.default_rng(5)
    own = [ShareOfNoise(np.random.default_rng(5), share) for share in shares]

    def drawn(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.logistic(size=shape) if name == "logistic" else getattr(rng, name)(shape, *arguments)

    np.testing.assert_array_equal(
        np.concatenate([drawn(rng, (len(range(7)[rng._share.rows]), 2)) for rng in own]), drawn(whole, (7, 2))
    )
    rollout = drawn(whole, (5, 7, 2))
    for rng, share in zip(own, shares, strict=True):
        np.testing.assert_array_equal(drawn(rng, (5, share.num_envs, 2)), rollout[:, share.rows])
        assert rng.bit_generator.state == whole.bit_generator.state


@pytest.mark.parametrize(("whole", "size", "rows"), [(7, 7, slice(3, 5)), (32, 16, slice(0, 2))])
def test_batches_are_whole_tiles_or_the_learners(whole: int, size: int, rows: slice) -> None:
    share = EnvironmentShare(3, 2, whole)
    batch = share.padded(np.ones((2, 4), np.float32))
    assert batch.shape == (size, 4)
    assert (batch[rows] == 1).all()
    assert batch.sum() == 8
    noise = ShareOfNoise(np.random.default_rng(1), share).standard_normal((size, 1))
    np.testing.assert_array_equal(noise[rows], np.random.default_rng(1).standard_normal((whole, 1))[3:5])


def test_draws_that_cannot_be_divided_are_refused() -> None:
    noise = ShareOfNoise(np.random.default_rng(0), EnvironmentShare(0, 2, 4))
    divided_draws = {"standard_normal", "standard_exponential", "logistic"}
    others = {name for name in dir(np.random.Generator) if not name.startswith("_")} - divided_draws - {"bit_generator"}
    assert {"uniform", "normal", "integers", "permutation", "spawn"} <= others
    for name in others:
        with pytest.raises(NotImplementedError, match=f"ShareOfNoise.{name}: "):
            getattr(noise, name)()
    for draw in (noise.standard_normal, partial(noise.logistic, size=5), partial(noise.standard_normal, (2, 1), out=1)):
        with pytest.raises(NotImplementedError, match="ShareOfNoise"):
            draw()


def test_a_tile_is_what_policies_are_padded_to() -> None:
    assert TILE == ROWS
