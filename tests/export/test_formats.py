"""TorchScript and exported programs beside the graph: the same answers, the same bytes, refused where they differ."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.algorithms.policies.loading import load_policy
from loomrl.errors import GateRefused
from loomrl.export import formats
from loomrl.export.export import export_policy
from loomrl.export.parity import prove_parity
from loomrl.runs.config import PolicyConfig
from loomrl.serving.policy.model import ServedPolicy
from loomrl.system.files import sha256_file
from loomrl.types import ParityReport
from tests.support.trained import Policy

Box, Discrete = gymnasium.spaces.Box, gymnasium.spaces.Discrete
NUMBERS = Box(-np.inf, np.inf, (4,), np.float32)


def fresh(observation: Any, action: Any, seed: int = 0, **settings: Any) -> ActorCriticPolicy:
    given = {"hidden_sizes": (16, 16), "activation": "tanh", "normalize_observations": True, **settings}
    generator = torch.Generator().manual_seed(seed)
    return ActorCriticPolicy.for_spaces("ppo", observation, action, generator=generator, **given).eval()


@pytest.mark.parametrize(
    ("observation", "action", "settings"),
    [
        (NUMBERS, Discrete(3, start=2), {}),
        (NUMBERS, Box(-2.0, 1.0, (2,), np.float32), {}),
        (NUMBERS, Box(-2.0, 1.0, (2, 3), np.float32), {"squash_actions": True, "activation": "elu"}),
        (NUMBERS, gymnasium.spaces.MultiDiscrete([3, 4]), {"normalize_observations": False}),
        (NUMBERS, gymnasium.spaces.MultiBinary(3), {"activation": "silu"}),
        (Discrete(6), Discrete(4), {}),
        (Box(0, 255, (3, 40, 40), np.uint8), Discrete(4), {}),
    ],
)
def test_torchscript_answers_as_the_network_does(observation: Any, action: Any, settings: Any) -> None:
    policy = fresh(observation, action, **settings)
    read = formats.read(formats.build(policy, "torchscript"), "torchscript", policy.output_names)
    observation.seed(0)
    for size in (1, 2, 7):
        obs = np.stack([np.asarray(observation.sample()) for _ in range(size)])
        with torch.no_grad():
            expected = policy.forward(torch.from_numpy(obs))
        found = read.outputs(obs)
        assert list(found) == list(policy.output_names)
        for name, value in found.items():
            np.testing.assert_allclose(value, expected[name].numpy(), rtol=1e-5, atol=1e-6)


def test_an_exported_program_answers_as_the_network_does_and_names_no_place() -> None:
    policy = fresh(NUMBERS, Discrete(3))
    data = formats.build(policy, "torch_export")
    assert formats.build(policy, "torch_export") == data
    assert b"site-packages" not in data
    assert b"actor_critic.py" not in data
    read = formats.read(data, "torch_export", policy.output_names)
    observations = np.random.default_rng(0).normal(size=(1_030, 4)).astype(np.float32)
    report = prove_parity(policy, read, observations[:1], observations[1:], 1e-4)
    assert (report.passed, report.num_observations) == (True, 1_030)


IN_ANOTHER_PROCESS = """
import sys, gymnasium, numpy as np, torch
from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.export import formats
policy = ActorCriticPolicy.for_spaces("ppo", gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32),
    gymnasium.spaces.Discrete(3), hidden_sizes=(16, 16), activation="tanh", normalize_observations=True,
    generator=torch.Generator().manual_seed(0)).eval()
sys.stdout.buffer.write(formats.build(policy, "torchscript"))
"""


def test_torchscript_has_the_same_bytes_in_another_process_and_the_second_time(tmp_path: Path) -> None:
    first, second = (formats.build(fresh(NUMBERS, Discrete(3)), "torchscript") for _ in range(2))
    assert first == second
    script = tmp_path / "elsewhere.py"
    script.write_text(IN_ANOTHER_PROCESS)
    made = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, check=True).stdout
    assert made == first
    for trace in (b"/src/", b"site-packages", b"elsewhere"):
        assert trace not in first
    assert formats.build(fresh(NUMBERS, Discrete(3), seed=1), "torchscript") != first


def with_formats(config: PolicyConfig, *names: str) -> PolicyConfig:
    return config.model_copy(update={"export": config.export.model_copy(update={"formats": names})})


@pytest.fixture
def asking(config: PolicyConfig) -> PolicyConfig:
    return with_formats(config, "torchscript")


def export(config: PolicyConfig, policy: Policy, output: Path) -> Any:
    return export_policy(config, policy.environment, policy.training, policy.evaluation, policy.root / "safety", output)


def assert_is_proved(folder: Path, config: PolicyConfig, name: str, file: Path) -> None:
    """The manifest names the file of a format, and its actions were compared with the network's."""
    assert ServedPolicy.load(folder).manifest.formats == {name: {"file": file.name, "sha256": sha256_file(file)}}
    proof = ParityReport.read(folder / "parity.json").formats[name]
    assert proof.passed
    assert proof.num_observations == config.export.parity_random + proof.num_visited


def assert_acts_as(policy: Policy, folder: Path, program: Any) -> None:
    observations = np.random.default_rng(1).normal(size=(100, 4)).astype(np.float32)
    index = list(ServedPolicy.load(folder).manifest.outputs).index("action")
    np.testing.assert_array_equal(
        program(torch.from_numpy(observations))[index].numpy(), load_policy(policy.training)(observations)
    )


def test_the_stage_writes_what_the_config_asks_for(asking: PolicyConfig, admitted: Policy, tmp_path: Path) -> None:
    export(asking, admitted, tmp_path)
    path = tmp_path / "policy.torchscript.pt"
    assert_is_proved(tmp_path, asking, "torchscript", path)
    with pytest.warns(DeprecationWarning, match="torch.jit.load"):
        script = torch.jit.load(path)  # as any program would
    assert_acts_as(admitted, tmp_path, script)


def test_the_stage_writes_an_exported_program_with_its_proof(
    config: PolicyConfig, admitted: Policy, tmp_path: Path
) -> None:
    export(with_formats(config, "torch_export"), admitted, tmp_path)
    path = tmp_path / "policy.pt2"
    assert_is_proved(tmp_path, config, "torch_export", path)
    assert_acts_as(admitted, tmp_path, torch.export.load(path).module())  # as any program would


def test_a_format_that_answers_otherwise_is_refused(
    asking: PolicyConfig, admitted: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = load_policy(admitted.training)
    with torch.no_grad():
        next(other.head.parameters()).mul_(-1.0)
    build = formats.build
    monkeypatch.setattr(formats, "build", lambda _, wanted: build(other, wanted))
    with pytest.raises(GateRefused, match="the torchscript does not act like the network: [1-9]"):
        export(asking, admitted, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["parity.json"]
    assert not ParityReport.read(tmp_path / "parity.json").formats["torchscript"].passed
