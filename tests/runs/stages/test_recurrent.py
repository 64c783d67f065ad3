"""A policy that remembers: through the five stages, served, and held against itself."""

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loomrl.algorithms.policies.loading import load_policy
from loomrl.environment.collecting.collector import run_episodes
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_env, make_envs
from loomrl.evaluation.config import EvaluationConfig
from loomrl.export.config import ExportConfig
from loomrl.runs import preflight
from loomrl.runs.config import PolicyConfig
from loomrl.safety.case.document import read_case
from loomrl.safety.config import SafetyConfig
from loomrl.serving.policy.model import MANIFEST, ServedPolicy
from loomrl.serving.settings import ServerSettings
from loomrl.shadow.comparison import num_unequal
from loomrl.shadow.config import ShadowConfig
from loomrl.shadow.pairs import Pairs
from loomrl.shadow.shadow import run_shadow
from loomrl.storage.registry import Registry
from loomrl.system.files import read_json, write_json, write_sums
from loomrl.training.config import TrainingConfig, ValidationConfig
from loomrl.types import EvaluationReport, ParityReport
from tests.support.inside import Inside
from tests.support.trained import Policy, through_the_stages
from tests.support.user_environments import write_cue

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


def test_nothing_is_found_wrong_with_it_before_training(tmp_path: Path) -> None:
    preflight.check(CONFIG, tmp_path)


def test_what_is_served_is_what_the_policy_plays(cue: Policy, loomrl_home: Path) -> None:
    """Three episodes at a time, the server started again in the middle of them."""
    seeds = range(6)
    envs = make_envs(cue.environment, 3, autoreset="disabled")
    with closing(envs):
        expected = run_episodes(envs, load_policy(cue.training).act, seeds, np.random.default_rng(0))
    settings = ServerSettings("cue", folders={"champion": cue.root / "export"})
    found = {seed: [] for seed in seeds}
    for together in (seeds[:3], seeds[3:]):
        plays = [(seed, make_env(cue.environment)) for seed in together]
        observed = {seed: env.reset(seed=seed)[0] for seed, env in plays}
        while plays:
            with Inside(settings) as server:  # a server for each step
                asks = [{"agent_id": f"agent-{seed}", "episode_id": f"{seed}", "observation": observed[seed].tolist()}
                        for seed, _ in plays]  # fmt: skip
                decisions = server.ask("POST", "/decide", {"requests": asks}).json()["decisions"]
            going = []
            for (seed, env), decision in zip(plays, decisions, strict=True):
                found[seed].append(decision["action"])
                observed[seed], _, terminated, truncated, _ = env.step(decision["action"])
                if terminated or truncated:
                    env.close()
                else:
                    going.append((seed, env))
            plays = going
    assert [found[seed] for seed in seeds] == [episode.action.tolist() for episode in expected]


def test_a_first_version_is_held_against_itself_episode_by_episode(cue: Policy) -> None:
    served, env = ServedPolicy.load(cue.root / "export"), make_env(cue.environment)
    observed, acted, episodes, steps = [], [], [], []
    for seed in range(4):
        obs, _ = env.reset(seed=seed)
        state, ended = np.zeros((1, MEMORY), np.float32), False
        while not ended:
            outputs = served.outputs(obs[None], state)
            state = outputs["state_out"]
            steps.append(episodes.count(seed))
            observed, acted, episodes = [*observed, obs], [*acted, outputs["action"][0]], [*episodes, seed]
            obs, _, ended, _, _ = env.step(outputs["action"][0])
    env.close()
    interleaved = np.argsort(steps, kind="stable")
    columns = [np.array(column)[interleaved] for column in (observed, acted, episodes)]
    zeros = np.zeros(len(acted))
    pairs = Pairs(columns[0], columns[1], columns[1], zeros, zeros, columns[2], zeros, zeros, 0)
    assert num_unequal(pairs, served) == 0
    changed = columns[1].copy()
    changed[-1] = 1 - changed[-1]
    assert num_unequal(replace(pairs, acted=changed), served) == 1


@pytest.mark.long
def test_it_is_shadowed_with_its_memory(cue: Policy, loomrl_home: Path, tmp_path: Path) -> None:
    """As the first version it equals its artifact; as its own challenger it agrees in every step."""
    config = CONFIG.model_copy(update={"shadow": ShadowConfig(num_episodes=8, min_decisions=24)})
    versions = []
    for run in ("one", "two"):
        exported = shutil.copytree(cue.root / "export", tmp_path / run)
        write_json(exported / MANIFEST, read_json(exported / MANIFEST) | {"policy_digest": run})
        write_sums(exported)
        versions.append(Registry().register("cue", exported, run))
    first, second = versions
    alone = run_shadow(config, cue.environment, first, None)
    assert (alone.num_episodes, alone.bitwise_equal) == (8, True)
    beside = run_shadow(config, cue.environment, second, first)
    assert beside.challenger_errors == 0
    assert beside.agreement is not None
    assert beside.agreement.estimate == 1.0
    assert beside.value_difference is not None
    assert beside.value_difference.estimate == 0.0
