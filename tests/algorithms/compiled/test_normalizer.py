"""The normaliser without torch against the torch module: the same statistics, the same features, cut on both sides."""

import numpy as np
import pytest
import torch

from loomrl.algorithms.compiled.normalizer import Normalizer, normalize
from loomrl.algorithms.networks.preprocessing import ObservationNormalizer


def test_statistics_and_features_are_those_of_the_torch_module() -> None:
    rng = np.random.default_rng(0)
    own, module = Normalizer(3), ObservationNormalizer(3)
    for size, shift in ((40, 0.0), (7, 5.0), (90, -2.0)):
        batch = (rng.normal(size=(size, 3)) * [1.0, 100.0, 0.0] + shift * np.array([1.0, 1.0, 0.0])).astype(np.float32)
        own.update(batch)
        module.update(batch)
    for name, value in own.arrays().items():
        assert value == pytest.approx(module.state_dict()[name].numpy(), rel=1e-12)
    features = rng.normal(size=(50, 3)).astype(np.float32) * np.float32(300.0)
    out = np.empty_like(features)
    normalize(features, own.shift, own.scale, out)
    assert out == pytest.approx(module(torch.from_numpy(features)).numpy(), rel=1e-6)
    assert out.min() == -10.0
    assert out.max() == 10.0


def test_loading_brings_back_what_kernels_use() -> None:
    one, other = Normalizer(2), Normalizer(2)
    one.update(np.random.default_rng(1).normal(3.0, 2.0, (30, 2)).astype(np.float32))
    other.load(**one.arrays())
    assert other.shift.tobytes() == one.shift.tobytes()
    assert other.scale.tobytes() == one.scale.tobytes()
