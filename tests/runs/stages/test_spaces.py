"""A structured observation and several choices at once through every stage, in process."""

import numpy as np
import pytest

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_env
from loomrl.environment.snapshots.snapshot import load_snapshot
from loomrl.environment.spaces import space_from_json
from loomrl.environment.wrappers.flat import FlatBox
from loomrl.evaluation.config import EvaluationConfig
from loomrl.evaluation.tables import TRAJECTORIES, read_table
from loomrl.export.config import ExportConfig
from loomrl.runs.config import PolicyConfig
from loomrl.safety.config import ConstraintConfig, SafetyConfig
from loomrl.serving.policy.model import ServedPolicy
from loomrl.training.config import TrainingConfig, ValidationConfig
from loomrl.types import EvaluationReport
from tests.support.trained import Policy, through_the_stages
from tests.support.user_environments import write_panel

FRAMES = 2
CONFIG = PolicyConfig(
    name="panel",
    environment=EnvironmentConfig(id="Panel"),
    training=TrainingConfig(
        total_env_steps=4_096,
        validation=ValidationConfig(interval_env_steps=4_096, num_episodes=4),
        parameters={"num_envs": 8, "rollout_length": 64, "batch_size": 128, "hidden_sizes": [32], "n_epochs": 8,
                    "learning_rate": 5e-3},
    ),
    evaluation=EvaluationConfig(num_episodes=12, trajectory_episodes=12, bootstrap_replicates=100, render=False),
    safety=SafetyConfig(
        num_episodes=40,
        num_envs=40,
        constraints=[ConstraintConfig(name="dial", quantity="action[1]", low=0, high=1, max_probability=0.2)],
        checks={"minimum_return": {"threshold": 1.0}},
    ),
    export=ExportConfig(parity_visited=96, parity_random=512),
)  # fmt: skip


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """Trained, evaluated, examined and exported. Never change its folders."""
    code, root = tmp_path_factory.mktemp("code"), tmp_path_factory.mktemp("panel")
    write_panel(code, "panel_through_the_stages")
    environment = EnvironmentConfig(
        id="Panel", entry_point="panel_through_the_stages:Panel", path=code, frame_stack=FRAMES, fingerprint_steps=8
    )
    return through_the_stages(root, environment, CONFIG)


def test_the_snapshot_keeps_the_original_space(panel: Policy) -> None:
    spec = load_snapshot(panel.environment).spec
    assert spec.frame_stack == FRAMES
    space = space_from_json(spec.observation)
    assert isinstance(space, FlatBox)
    assert {part.name: (part.kind, part.shape) for part in space.parts} == {
        "panel.0": ("multi_discrete", (FRAMES,)),
        "panel.1": ("box", (FRAMES, 2)),
        "picture": ("image", (6, 6, FRAMES)),
    }


def test_it_learns_what_lamp_and_picture_say(panel: Policy) -> None:
    report = EvaluationReport.read(panel.evaluation / "evaluation.json")
    assert report.mean_return.estimate > 6.5  # of 8; chance gives (1/3 + 1/2) / 2 of it


def test_tables_hold_every_component(panel: Policy) -> None:
    table = read_table(panel.evaluation / TRAJECTORIES)
    size = FRAMES + 2 * FRAMES + 36 * FRAMES
    assert {"action_0", "action_1", "obs_0", f"obs_{size - 1}"} <= set(table.column_names)
    assert f"obs_{size}" not in table.column_names
    first, second = (table.column(f"action_{index}").to_numpy() for index in range(2))
    assert set(first) <= {1, 2, 3}
    assert set(second) <= {0, 1}


def test_the_exported_graph_plays_the_environment(panel: Policy) -> None:
    served = ServedPolicy.load(panel.root / "export")
    assert served.kind == "multi_discrete"
    layout = served.manifest.environment.observation["layout"]
    assert [part["name"] for part in layout] == ["panel.0", "panel.1", "picture"]
    env = make_env(panel.environment)
    obs, _ = env.reset(seed=5)
    total, ended = 0.0, False
    while not ended:
        action = served(obs[None])[0]
        obs, reward, terminated, truncated, _ = env.step(action)
        total, ended = total + float(reward), terminated or truncated
    env.close()
    assert total > 5.0
    assert np.asarray(action).shape == (2,)
