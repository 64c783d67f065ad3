"""The compiled engine against torch: the same actions, metrics and policies from the same random numbers."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from loomrl.algorithms import ppo
from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.algorithms.policies.loading import load_policy
from loomrl.algorithms.ppo.compiled import CompiledPPO
from loomrl.errors import ConfigError
from tests.support.trajectories import made_up

OBSERVATION = Box(-np.inf, np.inf, (3,), np.float32)
SPACES = {"discrete": Discrete(4), "shifted": Discrete(3, start=2), "box": Box(-0.5, 0.5, (2,), np.float32)}
SMALL = {"num_envs": 4, "rollout_length": 80, "batch_size": 160, "n_epochs": 2, "hidden_sizes": (16,)}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped values, entropy, odd sizes": {
        "value_clip_epsilon": 0.1,
        "entropy_coef": 0.1,
        "hidden_sizes": (20, 33),
        "activation": "relu",
        "batch_size": 150,  # in blocks of 128 and 22 rows; the last batch is smaller
    },
    "ends early": {"target_kl": 1e-3, "learning_rate": 0.01, "n_epochs": 10},
    "adaptive": {
        "learning_rate_schedule": "adaptive",
        "desired_kl": 0.01,
        "normalize_rewards": True,
        "clip_schedule": "linear",
        "activation": "elu",
        "normalize_advantages": False,
    },
    "as they come": {"normalize_observations": False, "initial_log_std": 25.0, "max_grad_norm": 0.01},
}


def make(engine: str, action: gymnasium.Space[Any], **values: Any) -> Any:
    config = ppo.Config(**{**SMALL, **values, "engine": engine})
    return ppo.build(config, OBSERVATION, action, seed=1, total_env_steps=2000)


rollout = partial(made_up, num_steps=80)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("space", SPACES)
def test_updates_are_torchs(space: str, variant: str) -> None:
    values = VARIANTS[variant]
    plain, compiled = make("torch", SPACES[space], **values), make("compiled", SPACES[space], **values)
    assert isinstance(compiled, CompiledPPO)
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    for seed in range(3):
        wanted, found = rollout(plain, seed), rollout(compiled, seed)
        np.testing.assert_allclose(found.action, wanted.action, atol=1e-4)
        metrics = plain.update(wanted, one)
        assert compiled.update(found, other) == pytest.approx(metrics, rel=2e-3, abs=2e-5)
    assert one.bit_generator.state == other.bit_generator.state
    policies = plain.policy.arrays(), compiled.policy.arrays()
    assert policies[0].keys() == policies[1].keys()
    for name, array in policies[0].items():
        assert (array.shape, array.dtype) == (policies[1][name].shape, policies[1][name].dtype)
        np.testing.assert_allclose(policies[1][name], array, rtol=1e-3, atol=3e-5)


@pytest.mark.parametrize("space", SPACES)
def test_one_gradient_step_is_autograds(space: str) -> None:
    """Without clipping by norm, Adam's first moment is a tenth of the gradient."""
    values = {"n_epochs": 1, "batch_size": 320, "max_grad_norm": 1e9, "entropy_coef": 0.01, "value_clip_epsilon": 0.2}
    plain, compiled = make("torch", SPACES[space], **values), make("compiled", SPACES[space], **values)
    for algorithm in (plain, compiled):
        algorithm.update(rollout(algorithm, 0), np.random.default_rng(0))
    moments = dict(zip(("critic", "actor"), _split(compiled), strict=True))
    gradient = plain._flat.gradient
    start, expected = 0, {}
    for name, parameter in plain.policy.named_parameters():
        expected[name] = 0.1 * gradient[start : start + parameter.numel()].view_as(parameter).numpy()
        start += parameter.numel()
    assert moments["critic"].keys() | moments["actor"].keys() == expected.keys()
    for name, array in (moments["critic"] | moments["actor"]).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-3, atol=2e-7, err_msg=name)


def _split(compiled: CompiledPPO) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The first moment by the names of the parameters."""
    policy, moment = compiled.policy, compiled._networks.first
    views = policy.views(moment)
    critic = {name: view for name, view in views.items() if name.startswith(("critic.", "value_head."))}
    return critic, {name: view for name, view in views.items() if name not in critic}


@pytest.mark.parametrize("space", ["discrete", "box"])
def test_threads_make_no_difference_to_a_single_bit(space: str) -> None:
    def policy(num_threads: int) -> list[bytes]:
        algorithm = make("compiled", SPACES[space], num_threads=num_threads)
        algorithm._num_threads = num_threads  # also where there is one processor
        algorithm._helper = ThreadPoolExecutor(1) if num_threads > 1 else None
        rng = np.random.default_rng(0)
        for seed in range(3):
            algorithm.update(rollout(algorithm, seed), rng)
        return [array.tobytes() for array in algorithm.policy.arrays().values()]

    assert policy(1) == policy(2)


@pytest.mark.parametrize("space", ["discrete", "box"])
def test_state_continues_to_the_bit(space: str) -> None:
    undisturbed, resumed = (make("compiled", SPACES[space], normalize_rewards=True) for _ in range(2))
    undisturbed.update(rollout(undisturbed, 1), np.random.default_rng(1))
    state = undisturbed.state_dict()
    undisturbed.update(rollout(undisturbed, 2), np.random.default_rng(2))
    resumed.load_state_dict(state)
    resumed.update(rollout(resumed, 2), np.random.default_rng(2))
    first, second = undisturbed.policy.arrays(), resumed.policy.arrays()
    assert all((first[name] == second[name]).all() for name in first)


@pytest.mark.parametrize("space", SPACES)
def test_files_are_those_of_the_torch_policy(space: str, tmp_path: Any) -> None:
    compiled = make("compiled", SPACES[space])
    compiled.update(rollout(compiled, 0), np.random.default_rng(0))
    compiled.policy.save(tmp_path / "compiled")
    loaded = load_policy(tmp_path / "compiled")
    assert isinstance(loaded, ActorCriticPolicy)
    loaded.save(tmp_path / "torch")
    for name in ("policy.safetensors", "policy.json"):
        assert (tmp_path / "compiled" / name).read_bytes() == (tmp_path / "torch" / name).read_bytes()
    obs = np.random.default_rng(1).standard_normal((9, 3), np.float32)
    np.testing.assert_allclose(compiled.policy(obs), loaded(obs), rtol=1e-4, atol=1e-5)
    assert compiled.policy(obs).dtype == loaded(obs).dtype
    np.testing.assert_allclose(
        compiled.policy.act(obs, np.random.default_rng()).value,
        loaded.act(obs, np.random.default_rng()).value,
        atol=1e-4,
    )
    with pytest.raises(ConfigError, match=r"observations of shape \(9, 2\)"):
        compiled.policy(obs[:, :2])


@pytest.mark.parametrize(
    ("values", "observation", "action", "reason"),
    [
        ({"activation": "silu"}, OBSERVATION, Discrete(2), "activation silu"),
        ({"squash_actions": True}, OBSERVATION, SPACES["box"], "squashed actions"),
        ({}, Box(0, 255, (8, 8, 3), np.uint8), Discrete(2), "is no image"),
        ({}, Discrete(3), Discrete(2), "is no image"),
        ({}, OBSERVATION, gymnasium.spaces.MultiBinary(2), "it takes Discrete and Box"),
    ],
)
def test_what_it_cannot_express_goes_to_torch(
    values: dict[str, Any], observation: Any, action: Any, reason: str
) -> None:
    assert ppo.choose_engine(ppo.Config(**values), observation, action) == "torch"
    with pytest.raises(ConfigError, match=reason):
        ppo.choose_engine(ppo.Config(**values, engine="compiled"), observation, action)


@pytest.mark.parametrize("values", [{"engine": "torch"}, {"squash_actions": True}, {"engine": "device"}])
def test_a_second_thread_is_refused_by_engines_that_have_no_use_for_it(values: dict[str, Any]) -> None:
    for_two = ppo.Config(**values, num_threads=2)
    with pytest.raises(ConfigError, match=r"training\.parameters\.num_threads: found 2, but only the compiled engine"):
        ppo.choose_engine(for_two, OBSERVATION, SPACES["box"])
    assert ppo.choose_engine(for_two.model_copy(update={"num_threads": 1}), OBSERVATION, SPACES["box"]) != "compiled"


def test_engine_is_chosen_by_the_policy() -> None:
    assert ppo.choose_engine(ppo.Config(), OBSERVATION, Discrete(2)) == "compiled"
    assert ppo.choose_engine(ppo.Config(engine="torch"), OBSERVATION, Discrete(2)) == "torch"
