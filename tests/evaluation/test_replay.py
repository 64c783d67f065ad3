"""Rendered episodes, and environments that cannot render."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.evaluation.replay import NOT_RENDERED, render_episode
from loomrl.types import Act, Episode
from tests.support.trained import PROJECT

BLIND = """
from typing import Any, ClassVar
import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env):
    metadata: ClassVar[dict[str, Any]] = {"render_modes": MODES, "render_fps": 10}
    observation_space = spaces.Box(-1.0, 1.0, (2,))
    action_space = spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, False, {}

    def render(self):
        RENDER
"""


def act(obs: np.ndarray[Any, Any], rng: np.random.Generator) -> Act:
    return Act(action=np.zeros(len(obs), dtype=np.int64))


def episode(length: int) -> Episode:
    obs = np.zeros((length, 2), np.float32)
    return Episode(3, obs, np.zeros(length, np.int64), np.zeros(length), obs, terminated=False, truncated=True)


def snapshot(tmp_path: Path, modes: str, render: str) -> Path:
    code = tmp_path / "code"
    code.mkdir()
    name = f"walk_{abs(hash((modes, render, tmp_path)))}"
    (code / f"{name}.py").write_text(BLIND.replace("MODES", modes).replace("RENDER", render))
    config = EnvironmentConfig(id="Walk", entry_point=f"{name}:Walk", path=code, max_episode_steps=300)
    take_snapshot(config, PROJECT, tmp_path / "environment")
    return tmp_path / "environment"


def test_long_episode_has_at_most_the_frames_asked_for(tmp_path: Path) -> None:
    noise = "return np.random.default_rng(0).integers(0, 255, (400, 600, 3), dtype=np.uint8)"
    folder = snapshot(tmp_path, "['rgb_array']", noise.replace("(0)", "(self.np_random.integers(1000))"))
    assert render_episode(act, folder, episode(300), tmp_path / "episode.gif", 30) is None
    with Image.open(tmp_path / "episode.gif") as replay:
        assert replay.n_frames <= 30
        assert replay.size[0] < 320  # noise does not compress: a smaller width fits into 1.5 MB
    assert (tmp_path / "episode.gif").stat().st_size <= 1_500_000


@pytest.mark.parametrize(
    ("modes", "render", "reason"),
    [
        ("[]", "return None", "rgb_array"),
        ("['rgb_array']", "raise OSError('libEGL.so.1: cannot open shared object')", "the system's libEGL"),
        ("['rgb_array']", "return 'text'", "returned str instead of an array"),
    ],
)
def test_where_no_renderer_works_the_report_says_the_same_everywhere_and_the_events_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modes: str, render: str, reason: str
) -> None:
    monkeypatch.setenv("LOOMRL_EVENTS", str(tmp_path / "events.jsonl"))
    folder = snapshot(tmp_path, modes, render)
    assert render_episode(act, folder, episode(5), tmp_path / "episode.gif", 30) == NOT_RENDERED
    (warning,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert warning["event"] == "warning"
    assert reason in warning["message"]
    assert not (tmp_path / "episode.gif").exists()


@pytest.mark.parametrize("display", [None, ":0"])
def test_a_display_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, display: str | None) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    if display is None:
        monkeypatch.delenv("DISPLAY", raising=False)
    else:
        monkeypatch.setenv("DISPLAY", display)
    seen = f"import os, pathlib; pathlib.Path({str(tmp_path / 'gl')!r}).write_text(os.environ['MUJOCO_GL']); "
    folder = snapshot(tmp_path, "['rgb_array']", seen + "return np.zeros((40, 60, 3), dtype=np.uint8)")
    assert render_episode(act, folder, episode(5), tmp_path / "episode.gif", 30) is None
    assert (tmp_path / "gl").read_text() == "egl"
    assert "MUJOCO_GL" not in os.environ
