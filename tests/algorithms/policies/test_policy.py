"""The trained policy: greedy, one answer per row in any batch, and the same after a round trip through its files."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple

from loomrl.algorithms.networks.preprocessing import ObservationNormalizer
from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.algorithms.policies.loading import load_policy
from loomrl.algorithms.sac.policy import SACPolicy
from loomrl.environment.wrappers.flat import FlatBox
from loomrl.errors import ArtifactError, ConfigError
from loomrl.system.files import sha256_file

FLAT = Box(-np.inf, np.inf, (4,), np.float32)
SPACES = {
    "cartpole": (FLAT, Discrete(2)),
    "shifted actions": (FLAT, Discrete(3, start=5)),
    "continuous": (FLAT, Box(-1.0, 2.0, (3,), np.float32)),
    "actions as a matrix": (FLAT, Box(-1.0, 2.0, (2, 2), np.float64)),
    "image": (Box(0, 255, (6, 5, 2), np.uint8), Discrete(4)),
    "numbered states": (Discrete(6, start=2), Discrete(2)),
    "several choices": (FLAT, MultiDiscrete([2, 3, 4], start=[0, 5, -1])),
    "a grid of choices": (FLAT, MultiDiscrete([[2, 3], [4, 5]])),
    "switches": (FLAT, MultiBinary(5)),
    "a grid of switches": (FlatBox(MultiBinary([2, 3])), MultiBinary([2, 2])),
    "structured": (
        FlatBox(
            Dict(
                camera=Box(0, 255, (3, 9, 8), np.uint8),  # channels first
                arm=Tuple([Box(-1.0, 1.0, (2,), np.float32), Discrete(3, start=4)]),
                doors=MultiBinary(2),
                dials=MultiDiscrete([2, 5], start=[1, -2]),
            )
        ),
        Discrete(3),
    ),
    "float64": (Box(-1.0, 1.0, (17,), np.float64), Box(-1.0, 1.0, (6,), np.float32)),
}


def policy_for(
    observation: gymnasium.Space, action: gymnasium.Space, hidden_sizes: tuple[int, ...] = (64, 64)
) -> ActorCriticPolicy:
    """A policy with weights large enough to have opinions, and a normaliser that has seen something."""
    generator = torch.Generator().manual_seed(1)
    policy = ActorCriticPolicy.for_spaces("ppo", observation, action, hidden_sizes, "tanh", True, generator)
    with torch.no_grad():
        for parameter in policy.head.parameters():
            parameter.mul_(1000)
    if policy.normalizer is not None:
        policy.normalizer.update(policy.preprocessor(torch.from_numpy(observations(observation, 50))).numpy())
    return policy


def observations(space: gymnasium.Space, count: int) -> np.ndarray:
    space.seed(3)
    return np.stack([np.asarray(space.sample()) for _ in range(count)])


@pytest.mark.parametrize("name", SPACES)
def test_actions_belong_to_the_action_space(name: str) -> None:
    observation, action = SPACES[name]
    policy = policy_for(observation, action)
    chosen = policy(observations(observation, 7))
    assert chosen.shape == (7, *action.shape)
    assert chosen.dtype == action.dtype
    for one in chosen:
        assert action.contains(one if action.shape else action.dtype.type(one))


@pytest.mark.parametrize("name", SPACES)
def test_round_trip_through_files(name: str, tmp_path: Path) -> None:
    observation, action = SPACES[name]
    policy = policy_for(observation, action)
    policy.save(tmp_path / "one")
    loaded = load_policy(tmp_path / "one")
    obs = observations(observation, 40)
    assert loaded(obs).tobytes() == policy(obs).tobytes()
    loaded.save(tmp_path / "two")
    for file in ("policy.safetensors", "policy.json"):
        assert sha256_file(tmp_path / "one" / file) == sha256_file(tmp_path / "two" / file)


@pytest.mark.parametrize("width", [32, 64, 256])
def test_a_row_is_answered_the_same_in_any_batch(width: int) -> None:
    policy = policy_for(*SPACES["continuous"], hidden_sizes=(width, width))
    obs = observations(FLAT, 100)
    whole = policy.act(obs, np.random.default_rng(0))
    assert whole.value is not None
    for size in (1, 3, 16, 17, 64):
        for start in range(0, 100, size):
            part = policy.act(obs[start : start + size], np.random.default_rng(0))
            assert part.action.tobytes() == whole.action[start : start + size].tobytes()
            assert part.value is not None
            assert part.value.tobytes() == whole.value[start : start + size].tobytes()


@pytest.mark.parametrize("name", SPACES)
def test_actions_alone_are_those_of_the_whole_answer(name: str) -> None:
    observation, action = SPACES[name]
    policy, obs = policy_for(observation, action), observations(observation, 37)
    assert policy(obs).tobytes() == policy.act(obs, np.random.default_rng(0)).action.tobytes()


@pytest.mark.parametrize("name", ["cartpole", "shifted actions", "float64"])
def test_so_are_those_of_sac(name: str) -> None:
    observation, action = SPACES[name]
    generator = torch.Generator().manual_seed(1)
    policy = SACPolicy.for_spaces("sac", observation, action, (32,), "relu", True, generator)
    obs = observations(observation, 37)
    assert policy(obs).tobytes() == policy.act(obs, np.random.default_rng(0)).action.tobytes()


def test_forward_is_what_acting_uses() -> None:
    policy = policy_for(*SPACES["shifted actions"])
    obs = observations(FLAT, 32)
    out = policy.forward(torch.from_numpy(obs))
    assert set(out) == {"action", "value", "logits"}
    assert (out["action"].numpy() == policy(obs)).all()
    assert (out["logits"].argmax(-1) + 5 == out["action"]).all()
    assert set(policy_for(*SPACES["continuous"]).forward(torch.from_numpy(obs))) == {
        "action", "value", "mean", "log_std",
    }  # fmt: skip


def test_continuous_actions_are_clipped_means() -> None:
    policy = policy_for(*SPACES["continuous"])
    out = policy.forward(torch.from_numpy(observations(FLAT, 200)))
    assert (out["mean"].abs() > 2).any()  # else clipping would not show
    torch.testing.assert_close(out["action"], out["mean"].clamp(-1.0, 2.0))


def test_one_hot_and_flattening() -> None:
    numbered = policy_for(*SPACES["numbered states"]).preprocessor
    assert numbered(torch.tensor([2, 7])).tolist() == [[1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]]
    image = policy_for(*SPACES["image"]).preprocessor
    pixels = torch.arange(120, dtype=torch.uint8).reshape(2, 6, 5, 2)
    torch.testing.assert_close(image(pixels)[1], (pixels[1].permute(2, 0, 1) / 255).flatten())


def test_normaliser_equals_numpy() -> None:
    rng = np.random.default_rng(0)
    data = rng.normal([3.0, -100.0, 1e4], [0.1, 20.0, 3.0], (900, 3)).astype(np.float32)
    normalizer = ObservationNormalizer(3)
    for batch in np.split(data, [1, 10, 400]):
        normalizer.update(batch)
    assert normalizer.mean.numpy() == pytest.approx(data.astype(np.float64).mean(0), rel=1e-12)
    assert normalizer.var.numpy() == pytest.approx(data.astype(np.float64).var(0), rel=1e-9)
    normalised = normalizer(torch.from_numpy(data)).numpy()
    assert normalised.mean(0) == pytest.approx(np.zeros(3), abs=1e-3)
    assert normalised.std(0) == pytest.approx(np.ones(3), abs=1e-3)


def test_normaliser_clips_and_leaves_constants_alone() -> None:
    normalizer = ObservationNormalizer(2)
    normalizer.update(np.array([[1.0, 7.0], [-1.0, 7.0]]))
    out = normalizer(torch.tensor([[1e9, 7.0], [-1e9, 7.5]]))
    torch.testing.assert_close(out, torch.tensor([[10.0, 0.0], [-10.0, 0.5]]))


@pytest.mark.parametrize(
    ("observation", "action", "message"),
    [
        (Dict({"a": FLAT, "b": Text(3)}), Discrete(2), "its part 'b'.* is not supported; supported: Box, Discrete"),
        (Sequence(Discrete(2)), Discrete(2), "observation space Sequence.* padding what has no fixed size"),
        (Box(0, 255, (4, 9, 3), np.uint8), Discrete(2), r"4 x 9 pixels, 3 channels\) is too small to convolve"),
        (FLAT, Dict({"a": Discrete(2)}), "action space Dict.* put its parts into one MultiDiscrete"),
        (FLAT, Box(0, 9, (2,), np.int64), "action space Box.* as MultiDiscrete"),
    ],
)
def test_unsupported_spaces_are_named(observation: gymnasium.Space, action: gymnasium.Space, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ActorCriticPolicy.for_spaces("ppo", observation, action, (8,), "tanh", True)


def test_wrong_observation_shape_is_named() -> None:
    with pytest.raises(ConfigError, match=r"shape \(4,\) reached a policy for batches of \(4,\)"):
        policy_for(*SPACES["cartpole"])(np.zeros(4, np.float32))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    policy_for(*SPACES["cartpole"]).save(tmp_path)
    weights = tmp_path / "policy.safetensors"
    weights.write_bytes(weights.read_bytes()[:-50])
    with pytest.raises(ArtifactError, match="policy.safetensors does not hold this policy's weights"):
        load_policy(tmp_path)
    (tmp_path / "policy.json").write_text('{"format_version": 2}')
    with pytest.raises(ArtifactError, match="policy.json is not a valid PolicyArchitecture"):
        load_policy(tmp_path)


def test_a_key_that_no_network_is_built_by_is_an_error() -> None:
    spaces = Box(-1.0, 1.0, (2,), np.float32), Box(-1.0, 1.0, (1,), np.float32)
    with pytest.raises(TypeError, match="ActorCriticPolicy.for_spaces got unknown squash_action$"):
        ActorCriticPolicy.for_spaces("ppo", *spaces, (8,), "tanh", squash_action=True)
