"""What is blamed on a disturbance of the sensors, and what is not."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.safety.case.evidence import EvidenceWriter
from loomrl.safety.check import Context
from loomrl.safety.checks import falsification, observation_attack
from loomrl.safety.config import ConstraintConfig, SafetyConfig
from loomrl.types import Episode, Verdict

LOW = ConstraintConfig(name="low", quantity="reward", high=0.5, max_probability=0.9)
CHECKS: dict[Any, dict[str, Any]] = {
    falsification: {"num_leads": 8, "num_rounds": 2, "population": 24, "magnitude": 1.0},
    observation_attack: {"magnitude": 0.5, "num_candidates": 2},
}


def chooses(obs: NDArray[Any]) -> NDArray[np.int64]:
    """The second action for what is above 1.5."""
    return (obs[:, 0] > 1.5).astype(np.int64)


def played(act: Any, seeds: Any, spoilt: set[int]) -> list[Episode]:
    """Episodes of one step. Those of spoilt seeds break the limit whatever is done, the others by the second action."""
    obs = np.array([[1.0 + seed % 2 / 10] for seed in seeds], np.float32)
    actions = act(obs, np.random.default_rng(0)).action
    return [
        Episode(
            int(seed), one[None], action[None], np.array([float(seed in spoilt or action == 1)]), one[None], True, False
        )
        for seed, one, action in zip(seeds, obs, actions, strict=True)
    ]


def claimed(check: Any, folder: Path, spoilt: set[int], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The check's claim about the limit, where undisturbed episodes of some seeds break it."""
    config = SafetyConfig(num_episodes=8, num_envs=24, first_seed=0, constraints=[LOW])
    context = Context(
        policy=chooses, snapshot=SimpleNamespace(spec=SimpleNamespace(shield=None)), config=config,
        snapshot_folder=folder, policy_folder=None, evaluation_folder=folder,
        observation_space=spaces.Box(0.0, 4.0, (1,)), action_space=spaces.Discrete(2),
        visited=np.linspace(0.0, 4.0, 32, dtype=np.float32)[:, None],
        episodes=[], play=lambda act, seeds: played(act, seeds, spoilt), evidence=EvidenceWriter(folder),
    )  # fmt: skip
    context = replace(
        context, episodes=played(lambda obs, _: SimpleNamespace(action=chooses(obs)), config.seeds, spoilt)
    )
    monkeypatch.setattr(falsification, "_recovery", lambda *_: None)
    settings = check.Config(**CHECKS[check])
    (claim,) = [one for one in check.examine(context.of(check, settings), settings) if one and one.id.endswith(".low")]
    return claim


@pytest.mark.parametrize("check", CHECKS, ids=["drift", "attack"])
def test_what_breaks_without_a_disturbance_is_none_of_its_doing(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHECKS, check, {**CHECKS[check], "magnitude": 0.1})
    claim = claimed(check, tmp_path, {0, 1, 3}, monkeypatch)
    assert claim.verdict is Verdict.SUPPORTED, claim.finding


@pytest.mark.parametrize("check", CHECKS, ids=["drift", "attack"])
def test_what_a_disturbance_breaks_is_found_where_others_break_it_too(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claimed(check, tmp_path, {0, 1, 3}, monkeypatch)
    assert claim.verdict is Verdict.REFUTED
    assert claim.bound.measured > 0.0
    assert claim.counterexample.seed not in {0, 1, 3}


def test_as_many_episodes_are_attacked_as_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of them break the limit by themselves; others do not."""
    settings = {**CHECKS[observation_attack], "magnitude": 0.1, "num_episodes": 3}
    monkeypatch.setitem(CHECKS, observation_attack, settings)
    claim = claimed(observation_attack, tmp_path, {0, 1, 2, 3}, monkeypatch)
    assert (claim.verdict, claim.num_samples) == (Verdict.SUPPORTED, 3)


@pytest.mark.parametrize("check", CHECKS, ids=["drift", "attack"])
def test_where_every_episode_breaks_it_nothing_is_supported(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claimed(check, tmp_path, set(range(8)), monkeypatch)
    assert (claim.verdict, claim.counterexample) == (Verdict.UNDECIDED, None)
    assert "no episode keeps the limit undisturbed" in claim.finding
