"""The examples of the gym run as they are, and so does a domain that somebody else wrote."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from loomrl.environment.check import check_environment
from loomrl.environment.sources.source import load_source

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "gym"


def run(script: str, home: Path) -> str:
    settings = {**os.environ, "LOOMRL_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script)], cwd=home, env=settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_basic_usage(tmp_path: Path) -> None:
    output = run("basic_usage.py", tmp_path)
    assert "'terminated': True, 'truncated': False" in output


def test_all_domains(tmp_path: Path) -> None:
    lines = run("all_domains.py", tmp_path).splitlines()
    assert [line.partition("-")[0] for line in lines] == ["math", "game", "tool_call", "code", "language", "multimodal"]
    assert all("0.00 in words" in line for line in lines)


def test_inference_engine(tmp_path: Path) -> None:
    *rollouts, first, second, last = run("inference_engine.py", tmp_path).splitlines()
    assert len(rollouts) == 3
    assert all("by version 0" in line for line in rollouts)
    assert last == "the engine serves version 1"


@pytest.mark.long
def test_the_curriculum_finds_each_domains_level(tmp_path: Path) -> None:
    last = run("curriculum.py", tmp_path).splitlines()[-1]
    levels = eval(last.partition(" ")[2].rpartition(" last")[0])
    assert levels["math"] < levels["language"] < levels["multimodal"]


@pytest.mark.long
def test_an_ordinary_policy_learns_to_choose(tmp_path: Path) -> None:
    first, last = (float(line.split()[0]) for line in run("ordinary_policy.py", tmp_path).splitlines())
    assert last > first + 0.15


def test_registering_is_immutable(tmp_path: Path) -> None:
    first, second = (run("register_trading.py", tmp_path) for _ in range(2))
    assert first.startswith("CustomTradingEnv 1.2.0 ")
    assert first == second


@pytest.mark.long
def test_the_integrated_system(tmp_path: Path) -> None:
    """As it is, but for the warm start and most of the iterations: `benchmarks/integration.py` has all of them."""
    script = (EXAMPLES / "integrated_system.py").read_text()
    short = script.replace("max_iterations=200", "max_iterations=2").replace(
        "target_success_rate=0.8,", "target_success_rate=0.8, warm_start_accuracy=0.0, evaluation_tasks=5,"
    )
    (tmp_path / "short.py").write_text(short)
    lines = run(str(tmp_path / "short.py"), tmp_path).splitlines()
    assert [line.partition(":")[0] for line in lines[:3]] == ["math", "game", "tool_call"]
    assert lines[3] == "128 episodes, policy version 2, max_iterations"


@pytest.mark.long
def test_the_integration_made_by_hand_learns(tmp_path: Path) -> None:
    scores = [float(line.split()[0]) for line in run("ppo_integration.py", tmp_path).splitlines()]
    assert scores[-1] > scores[0] + 0.05
    assert (tmp_path / "policy" / "policy.json").is_file()
    assert list((tmp_path / "checkpoints").glob("step-*"))


@pytest.mark.long
def test_the_distributed_training(tmp_path: Path) -> None:
    """As it is, but for most of the iterations."""
    script = (EXAMPLES / "distributed_training.py").read_text()
    (tmp_path / "short.py").write_text(script.replace("80", "4").replace("20", "2"))
    *scores, last = run(str(tmp_path / "short.py"), tmp_path).splitlines()
    assert [line.partition(" in ")[2] for line in scores] == ["iterations from 1 on", "iterations from 3 on"]
    assert last == "256 episodes, policy version 4, max_iterations"


@pytest.mark.parametrize("mode", ["text", "choice"])
def test_a_domain_of_ones_own_conforms(mode: str) -> None:
    environment = load_source("riddles:Environment", EXAMPLES).create(mode=mode, difficulty=2)
    assert [finding for finding in check_environment(environment) if finding.severity == "error"] == []


def test_a_domain_of_ones_own_is_found_by_its_entry_point(tmp_path: Path) -> None:
    metadata = tmp_path / "riddles-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: riddles\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[loomrl.domains]\nriddles = riddles\n")
    (tmp_path / "riddles.py").write_text((EXAMPLES / "riddles.py").read_text())
    program = """
import asyncio
from loomrl import LoomRLGym
from loomrl.gym.domains import names

async def main():
    async with LoomRLGym() as gym:
        environment = await gym.create_environment("riddles", {"difficulty": 2})
        state = await environment.reset()
        _, reward, _, _ = await environment.step(state.text.partition(": ")[2][::-1])
        print(names()[-1], reward)

asyncio.run(main())
"""
    settings = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{tmp_path}"}
    done = subprocess.run([sys.executable, "-c", program], env=settings, capture_output=True, text=True, check=True)
    assert done.stdout == "riddles 1.0\n"


def test_riddles_of_a_level_have_its_length() -> None:
    domain = load_source("riddles:Riddles", EXAMPLES).create()
    rng = np.random.default_rng(0)
    assert [len(domain.generate(rng, level).right) for level in (0, 5)] == [3, 8]
