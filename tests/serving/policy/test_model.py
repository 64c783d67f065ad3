"""Policies as the server sees them."""

from pathlib import Path

import numpy as np
import pytest

from loomrl.errors import ArtifactError
from loomrl.serving.policy.model import GRAPH, MANIFEST, NotFinite, ServedPolicy
from loomrl.system.files import read_json, write_json
from tests.support.policies import OBSERVATIONS, continuous_folder, discrete_folder


def test_acts_as_the_manifest_says(tmp_path: Path) -> None:
    policy = ServedPolicy.load(discrete_folder(tmp_path))
    answer = policy.answer(OBSERVATIONS)
    assert answer.action.tolist() == read_json(tmp_path / MANIFEST)["probe_actions"]
    np.testing.assert_allclose(answer.value, OBSERVATIONS.sum(1) + 1.0, rtol=1e-5)


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_flipped_bit_is_refused(tmp_path: Path, place: str) -> None:
    path = discrete_folder(tmp_path) / GRAPH
    data = bytearray(path.read_bytes())
    data[{"first": 0, "middle": len(data) // 2, "last": -1}[place]] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match="SHA-256 differs"):
        ServedPolicy.load(tmp_path)


def test_a_graph_that_answers_the_probe_otherwise_is_refused(tmp_path: Path) -> None:
    discrete_folder(tmp_path)
    manifest = read_json(tmp_path / MANIFEST)
    manifest["probe_actions"][0] = 1 - manifest["probe_actions"][0]
    write_json(tmp_path / MANIFEST, manifest)
    with pytest.raises(ArtifactError, match="probe's actions"):
        ServedPolicy.load(tmp_path)


def test_a_manifest_that_hides_an_output_is_refused(tmp_path: Path) -> None:
    discrete_folder(tmp_path)
    manifest = read_json(tmp_path / MANIFEST)
    del manifest["outputs"]["logits"]
    write_json(tmp_path / MANIFEST, manifest)
    with pytest.raises(ArtifactError, match="outputs are"):
        ServedPolicy.load(tmp_path)


def test_a_missing_graph_names_the_file(tmp_path: Path) -> None:
    (discrete_folder(tmp_path) / GRAPH).unlink()
    with pytest.raises(ArtifactError, match=r"policy\.onnx"):
        ServedPolicy.load(tmp_path)


def test_numbers_that_are_not_finite_never_become_an_action(tmp_path: Path) -> None:
    weights = np.full((4, 2), 1e37, dtype=np.float32)
    folder = discrete_folder(tmp_path, weights)
    with pytest.raises(NotFinite, match="logits"):
        ServedPolicy.load(folder).answer(np.full((1, 4), 100.0, dtype=np.float32))


def test_bounds_of_a_continuous_action_space(tmp_path: Path) -> None:
    policy = ServedPolicy.load(continuous_folder(tmp_path, gain=9.0))
    assert policy.bounds is not None
    assert np.abs(policy(OBSERVATIONS)).max() == 1.0
