"""Actions that people name: what is no number of the action space is not taken for one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.serving.decisions.actions import check_action
from loomrl.serving.policy.model import ServedPolicy
from loomrl.system.http.problems import Problem
from tests.support.policies import continuous_folder, discrete_folder


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ServedPolicy]:
    folder = tmp_path_factory.mktemp("policies")
    made: dict[str, Path] = {"discrete": discrete_folder(folder / "d"), "continuous": continuous_folder(folder / "c")}
    return {kind: ServedPolicy.load(path) for kind, path in made.items()}


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("discrete", False),
        ("discrete", "1"),
        ("discrete", 1.0),
        ("discrete", 2),
        ("continuous", [False, 0]),
        ("continuous", ["0.5", 0]),
        ("continuous", [0.5]),
        ("continuous", [None, 0]),
        ("continuous", [[0.5], 0]),
        ("continuous", {"0": 0.5}),
        ("continuous", [1e39, 0]),
        ("continuous", [10**400, 0]),
        ("continuous", [1.5, 0]),
    ],
)
def test_other_actions_are_refused(policies: dict[str, ServedPolicy], kind: str, action: Any) -> None:
    with pytest.raises(Problem, match="action") as refused:
        check_action(action, policies[kind])
    assert refused.value.status == 400


def test_actions_are_taken_in_the_graphs_dtype(policies: dict[str, ServedPolicy]) -> None:
    assert check_action(1, policies["discrete"]) == np.int64(1)
    taken = check_action([1, -0.5], policies["continuous"])
    assert (taken.dtype, taken.tolist()) == (np.float32, [1.0, -0.5])
