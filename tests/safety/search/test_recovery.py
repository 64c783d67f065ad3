"""What a search says of a policy that breaks a limit and loses nothing else, and of what it could not examine."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.environment.collecting.collector import run_episodes
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.make import make_envs
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.environment.spaces import space_from_json
from loomrl.errors import ConfigError
from loomrl.safety.case.counterexample import Failure, Replayed
from loomrl.safety.case.evidence import EvidenceWriter
from loomrl.safety.check import Context, Scope, scope_of
from loomrl.safety.checks import falsification
from loomrl.safety.checks.falsification import FalsificationConfig
from loomrl.safety.config import ConstraintConfig, SafetyConfig
from loomrl.safety.probing.probes import act_with
from loomrl.system.files import read_json
from loomrl.types import Claim, Verdict

LEADS = 115
NEAR = ConstraintConfig(name="near", quantity="observation[0]", low=-1, high=1)


class Line(gymnasium.Env[Any, Any]):
    """A step to the left or to the right; all of them earn the same."""

    observation_space = spaces.Box(-100, 100, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(-0.05, 0.05)
        return np.array([self.place], np.float32), {}

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        self.place += 0.05 * (2 * int(action) - 1)
        return np.array([self.place], np.float32), 1.0, False, False, {}


class Shore(Line):
    """It ends, and the episode with it, two steps' lengths of the space before its bound."""

    observation_space = spaces.Box(-2, 2, (1,), np.float32)

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, bool(np.abs(self.place) > 1.9), truncated, info


class Told(Line):
    """Tells a speed, but not in an episode whose first step leads out of the ordinary."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[Any], dict[str, Any]]:
        self.info: dict[str, float] | None = None
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        obs, reward, _, truncated, _ = super().step(action)
        if self.info is None:
            self.info = {"speed": 0.05} if abs(self.place) < 0.05 else {}
        return obs, reward, False, truncated, self.info


class Once(Line):
    """Over after the first step."""

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, True, truncated, info


class Rungs(gymnasium.Env[Any, Any]):
    """A ladder that is climbed by a number."""

    observation_space = spaces.Discrete(9)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.rung = 4
        return self.rung, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.rung = int(np.clip(self.rung + np.round(action[0]), 0, 8))
        return self.rung, 1.0, self.rung == 0, False, {}


def runs_away(obs: NDArray[Any]) -> NDArray[np.int64]:
    """Keeps to the middle, and leaves for good where pushes alone lead."""
    place = obs[:, 0]
    return np.where(np.abs(place) > 0.35, place > 0, place < 0).astype(np.int64)


def runs_away_far_off(obs: NDArray[Any]) -> NDArray[np.int64]:
    """Keeps to the middle, and leaves for good farther out than pushes and its own few deviations lead."""
    place = obs[:, 0]
    return np.where(np.abs(place) > 1.0, place > 0, place < 0).astype(np.int64)


def gives_nothing(obs: NDArray[Any]) -> NDArray[np.int64]:
    """As above, but gives no action there."""
    return np.where(np.abs(obs[:, 0]) > 0.35, 7, obs[:, 0] < 0).astype(np.int64)


def climbs(obs: NDArray[Any]) -> NDArray[np.float32]:
    """Stays up, and jumps off the second rung."""
    return np.where(obs < 3, -1.0, np.where(obs < 5, 1.0, 0.0))[:, None].astype(np.float32)


def examined(folder: Path, environment: str, policy: Any, *limits: ConstraintConfig) -> tuple[Claim, Context]:
    """The claim about recoveries, of a policy that is a function."""
    wanted = EnvironmentConfig(
        id=environment.lower(),
        entry_point=f"{Path(__file__).stem}:{environment}",
        path=str(Path(__file__).parent),
        max_episode_steps=200,
    )
    snapshot = take_snapshot(wanted, Path(__file__).parent, folder / "environment")
    config = SafetyConfig(num_episodes=24, num_envs=24, constraints=list(limits))
    envs = make_envs(folder / "environment", 24, autoreset="disabled")
    episodes = run_episodes(envs, act_with(policy), list(config.seeds), np.random.default_rng(0))
    envs.close()
    context = Context(
        policy=policy,
        snapshot=snapshot,
        config=config,
        snapshot_folder=folder / "environment",
        policy_folder=None,
        evaluation_folder=folder,
        observation_space=space_from_json(snapshot.spec.observation),
        action_space=space_from_json(snapshot.spec.action),
        visited=np.concatenate([episode.obs for episode in episodes]),
        episodes=episodes,
        play=lambda *_: [],
        evidence=EvidenceWriter(folder / "case"),
    )
    settings = FalsificationConfig(num_leads=LEADS, num_lines=8)
    (claim,) = [
        claim
        for claim in falsification.examine(context.of(falsification, settings), settings)
        if claim.id == falsification.RECOVERY
    ]
    return claim, context


def test_states_are_those_at_the_ends_of_leads_without_the_neighbours(tmp_path: Path) -> None:
    claim, _ = examined(tmp_path, "Line", runs_away, NEAR)
    document = read_json(tmp_path / "case" / claim.evidence[0].uri)
    assert document["neighbours"] > 0
    assert claim.num_samples == document["num_states"]
    assert 0 < document["num_states"] <= LEADS
    assert f"up to {LEADS} led episodes" in claim.method
    assert "64 failures where first leads ended and 64 where leads that went on did" in claim.method
    scope = scope_of(falsification, FalsificationConfig(num_leads=LEADS), claim)
    assert scope.examined == f"{claim.num_samples} states at the ends of up to {LEADS} led episodes"


def replayed(folder: Path, claim: Claim, context: Context) -> Replayed:
    return falsification.replay(
        Failure(
            claim=claim,
            document=read_json(folder / "case" / claim.evidence[0].uri),
            seed=None,
            policy=context.policy,
            snapshot_folder=context.snapshot_folder,
            policy_folder=folder,
            evaluation_folder=folder,
            observation_space=context.observation_space,
            action_space=context.action_space,
        )
    )


def test_a_failure_that_breaks_a_limit_and_loses_nothing_is_named_and_replayed(tmp_path: Path) -> None:
    claim, context = examined(tmp_path, "Line", runs_away, NEAR)
    assert claim.verdict is Verdict.REFUTED
    assert "earns 150 and breaks near" in claim.finding
    document = read_json(tmp_path / "case" / claim.evidence[0].uri)
    assert document["earned"] == document["recovery_earned"]  # what is lost is the limit alone
    again = replayed(tmp_path, claim, context)
    assert again.reproduced
    assert "breaks near" in again.finding
    honest = replayed(tmp_path, claim, SimpleNamespace(**{**vars(context), "policy": lambda obs: (obs[:, 0] < 0) * 1}))
    assert not honest.reproduced


@pytest.mark.parametrize(
    "limits", [(NEAR.model_copy(update={"low": -2, "high": 2}),), ()], ids=["declared limit", "bounds of the space"]
)
def test_a_failure_on_the_way_to_a_limit_is_found_though_the_policy_hardly_moves(
    tmp_path: Path, limits: tuple[ConstraintConfig, ...]
) -> None:
    claim, context = examined(tmp_path, "Line" if limits else "Shore", runs_away_far_off, *limits)
    assert claim.verdict is Verdict.REFUTED
    assert replayed(tmp_path, claim, context).reproduced


def test_a_policy_that_gives_no_action_is_refuted_in_a_claim_that_can_be_written(tmp_path: Path) -> None:
    claim, context = examined(tmp_path, "Line", gives_nothing)
    assert claim.verdict is Verdict.REFUTED
    assert "the policy gives no action" in claim.finding
    assert Claim.model_validate_json(claim.to_bytes()) == claim
    assert replayed(tmp_path, claim, context).reproduced


@pytest.mark.parametrize(
    ("environment", "policy", "why"),
    [("Once", runs_away, "every episode was over"), ("Rungs", climbs, "no recovery is known")],
)
def test_a_search_that_could_find_nothing_supports_nothing(
    tmp_path: Path, environment: str, policy: Any, why: str
) -> None:
    claim, _ = examined(tmp_path, environment, policy)
    assert (claim.verdict, claim.mandatory) == (Verdict.UNDECIDED, False)
    assert why in claim.finding
    scope = scope_of(falsification, FalsificationConfig(num_leads=LEADS), claim)
    assert scope == Scope.nothing(claim.finding)


def test_a_number_that_no_episode_tells_is_named(tmp_path: Path) -> None:
    unknown = ConstraintConfig(name="slow", quantity="info.speed", high=1)
    with pytest.raises(ConfigError, match="no numeric key 'speed'"):
        examined(tmp_path, "Line", runs_away, unknown)


def test_a_led_episode_that_does_not_tell_a_number_ends_no_gate(tmp_path: Path) -> None:
    told = ConstraintConfig(name="slow", quantity="info.speed", high=1)
    claim, context = examined(tmp_path, "Told", lambda obs: (obs[:, 0] < 0).astype(np.int64), told)
    assert claim.verdict is Verdict.SUPPORTED
    assert all("speed" in episode.info for episode in context.episodes)


def test_an_honest_policy_is_supported(tmp_path: Path) -> None:
    claim, _ = examined(tmp_path, "Line", lambda obs: (obs[:, 0] < 0).astype(np.int64), NEAR)
    assert (claim.verdict, claim.mandatory) == (Verdict.SUPPORTED, True)
    assert claim.num_samples
