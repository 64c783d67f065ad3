"""A policy that remembers through the five stages, in process, and what cannot be done with it yet."""

from pathlib import Path

import numpy as np
import pytest
from trained import Policy, through_the_stages
from user_environments import write_cue

from loomrl import preflight
from loomrl.algorithms.policy import load_policy
from loomrl.config import PolicyConfig
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_env
from loomrl.errors import ArtifactError, ConfigError
from loomrl.evaluation.config import EvaluationConfig
from loomrl.export.config import ExportConfig
from loomrl.safety.case import read_case
from loomrl.safety.config import SafetyConfig
from loomrl.serving.model import ServedPolicy
from loomrl.serving.roles import _demand_memoryless
from loomrl.training.config import TrainingConfig, ValidationConfig
from loomrl.types import EvaluationReport, ParityReport

MEMORY = 16  # 8 numbers of the actor's and 8 of the critic's
CONFIG = PolicyConfig(
    name="cue",
    environment=EnvironmentConfig(id="CartPole-v1"),
    training=TrainingConfig(
        algorithm="recurrent_ppo",
        total_env_steps=8_192,
        validation=ValidationConfig(interval_env_steps=4_096, num_episodes=16),
        parameters={"num_envs": 16, "rollout_length": 64, "batch_size": 256, "hidden_sizes": [16], "n_epochs": 4,
                    "learning_rate": 5e-3, "memory_size": MEMORY // 2, "sequence_length": 8},
    ),
    evaluation=EvaluationConfig(num_episodes=20, trajectory_episodes=20, bootstrap_replicates=100, render=False),
    safety=SafetyConfig(num_episodes=40, num_envs=40, checks={"minimum_return": {"threshold": 0.6}}),
    export=ExportConfig(parity_visited=60, parity_random=512),
)  # fmt: skip


@pytest.fixture(scope="module")
def cue(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """Trained, evaluated, examined and exported. Never change its folders."""
    code, root = tmp_path_factory.mktemp("code"), tmp_path_factory.mktemp("cue")
    write_cue(code, "cue_through_the_stages")
    environment = EnvironmentConfig(
        id="Cue", entry_point="cue_through_the_stages:Cue", path=code, fingerprint_episodes=4, fingerprint_steps=4
    )
    return through_the_stages(root, environment, CONFIG)


def test_evaluation_carries_the_memory(cue: Policy) -> None:
    report = EvaluationReport.read(cue.evaluation / "evaluation.json")
    assert report.mean_return.estimate == 1.0  # without memory no policy is above 1/2 on average


def test_local_claims_say_which_memory_they_were_asked_with(cue: Policy) -> None:
    claims = {claim.id: claim for claim in read_case(cue.root / "safety").claims}
    assert any("memory of an episode's start" in text for text in claims["finiteness"].assumptions)
    assert not any("memory" in text for text in claims["minimum_return"].assumptions)


def test_the_graph_takes_and_gives_its_memory(cue: Policy) -> None:
    served = ServedPolicy.load(cue.root / "export")
    assert served.manifest.inputs == {
        "observation": {"dtype": "float32", "shape": [-1, 2]},
        "state_in": {"dtype": "float32", "shape": [-1, MEMORY]},
    }
    assert served.manifest.outputs["state_out"] == {"dtype": "float32", "shape": [-1, MEMORY]}
    parity = ParityReport.read(cue.root / "export" / "parity.json")
    assert parity.passed
    assert parity.max_scaled_difference["state_out"] <= parity.limit


def test_graph_and_network_play_the_same_episodes(cue: Policy) -> None:
    served, network = ServedPolicy.load(cue.root / "export"), load_policy(cue.training)
    env = make_env(cue.environment)
    for seed in range(6):
        obs, _ = env.reset(seed=seed)
        state, memory, ended = np.zeros((1, MEMORY), np.float32), None, False
        while not ended:
            outputs = served.outputs(obs[None], state)
            chosen = network.act(obs[None], np.random.default_rng(0), **({} if memory is None else {"memory": memory}))
            state, memory = outputs["state_out"], chosen.memory
            assert outputs["action"][0] == chosen.action[0]
            np.testing.assert_allclose(state, memory, atol=1e-5)
            obs, reward, ended, _, _ = env.step(chosen.action[0])
        assert reward == 1.0
    env.close()


def test_what_cannot_be_served_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="training.algorithm: recurrent_ppo trains a policy with a memory"):
        preflight.check(CONFIG, tmp_path)


def test_the_server_refuses_it(cue: Policy) -> None:
    with pytest.raises(ArtifactError, match="cue is recurrent: it needs its memory of 16 numbers back"):
        _demand_memoryless(ServedPolicy.load(cue.root / "export"))
