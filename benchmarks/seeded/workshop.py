"""Makes what the seeded files ask for, and takes it through the stages up to the gate."""

import importlib
import pkgutil
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from loomrl.algorithms.policies.loading import load_policy
from loomrl.algorithms.policies.policy import WEIGHTS
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.errors import EnvironmentFault, GateRefused
from loomrl.evaluation.config import EvaluationConfig
from loomrl.evaluation.evaluate import evaluate_policy, play
from loomrl.runs.config import load_config
from loomrl.safety.config import SafetyConfig
from loomrl.safety.gate import build_case
from loomrl.safety.replay import replay
from loomrl.system.files import sha256_file, write_sums
from loomrl.training.config import TrainingConfig
from loomrl.training.train import train_policy
from loomrl.types import SafetyCase, TrainingReport, Verdict

HERE = Path(__file__).parent
KINDS = ("policies", "rewards", "environments")
EVALUATION = EvaluationConfig(num_episodes=20, trajectory_episodes=10, bootstrap_replicates=200, render=False)
TRAINING: dict[str, Any] = {
    "seed": 1,
    "total_env_steps": 300_000,
    "validation": {"interval_env_steps": 20_000, "num_episodes": 50},
    "parameters": {
        "num_envs": 8, "rollout_length": 64, "batch_size": 64, "gamma": 0.99, "gae_lambda": 0.95, "n_epochs": 10,
        "learning_rate": 5e-4, "learning_rate_schedule": "linear", "normalize_observations": True,
    },
}  # fmt: skip
SHIPPED = load_config(HERE.parents[1] / "configs" / "cartpole.yaml")
GOOD_RETURN = 475.0  # CartPole-v1 counts as solved
FRESH_SEEDS = range(5_000_000, 5_001_000)  # of episodes that say whether a policy is good; nothing else plays them


@dataclass(frozen=True)
class Folders:
    """Of one policy's stages."""

    environment: Path
    training: Path
    evaluation: Path


@dataclass(frozen=True)
class Outcome:
    """What stopped a policy, or nothing."""

    blocking: tuple[str, ...] = ()  # ids of mandatory claims that are not met, or `data`, or `environment`
    refuted: tuple[str, ...] = ()  # those of them that are refuted, not merely undecided
    replayed: tuple[str, ...] = ()  # those of `blocking` whose failure was played again, and was there again
    finding: str = ""

    @classmethod
    def stopped(cls, by: str, error: Exception, again: "Outcome | None") -> "Outcome":
        """What never came as far as a case; `again` is what came of the same another time."""
        is_same = again is not None and again.finding == str(error)
        return cls((by,), (by,), (by,) if is_same else (), str(error))


class Workshop:
    """Trains each policy once; files that spoil it get copies."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def examine(self, case: ModuleType, is_second: bool = False) -> Outcome:
        """Take a seeded file as far as it comes; what stops before there is a case is taken there twice."""
        folder = self.root / case.__name__.replace(".", "-")
        folder.mkdir(parents=True)
        try:
            folders = self._made(case, folder)
            built = build_case(
                safety_of(case), folders.environment, folders.training,
                folders.evaluation, folder / "safety",
            )  # fmt: skip
        except (GateRefused, EnvironmentFault) as error:
            shutil.rmtree(folder)
            again = None if is_second else self.examine(case, is_second=True)
            return Outcome.stopped("data" if isinstance(error, GateRefused) else "environment", error, again)
        return _outcome(built, folder / "safety", folders)

    def good(self, seed: int, folder: Path) -> tuple[float, Outcome]:
        """A CartPole policy of the config that ships, but for the seed of its training, and its mean return in fresh
        episodes; `folder` gets its stages."""
        training = SHIPPED.training.model_copy(update={"seed": seed})
        folders = self._trained(folder, SHIPPED.environment, training)
        self._evaluated(folders, SHIPPED.evaluation)
        act = load_policy(folders.training).act
        fresh = play(act, folders.environment, FRESH_SEEDS, 250, "fresh")
        case = build_case(SHIPPED.safety, folders.environment, folders.training, folders.evaluation, folder / "safety")
        return float(np.mean([one.episode_return for one in fresh])), _outcome(case, folder / "safety", folders)

    # --- stages ---

    def _made(self, case: ModuleType, folder: Path) -> Folders:
        environment = getattr(case, "ENVIRONMENT", None)
        if environment is None:
            folders = self._copy_of_good(folder)
        else:
            described = {"entry_point": f"{case.__name__.rpartition('.')[2]}:{environment}", "path": _folder(case)}
            described |= {"id": environment, **getattr(case, "PARAMETERS", {})}
            training = TrainingConfig.model_validate({**TRAINING, **getattr(case, "TRAINING", {})})
            folders = self._trained(folder, EnvironmentConfig.model_validate(described), training)
        if spoil := getattr(case, "spoil", None):
            _spoil(folders.training, spoil)
        self._evaluated(folders)
        if tamper := getattr(case, "tamper", None):
            tamper(folders)
        return folders

    def _trained(self, folder: Path, environment: EnvironmentConfig, training: TrainingConfig) -> Folders:
        folders = Folders(folder / "environment", folder / "training", folder / "evaluation")
        take_snapshot(environment, HERE, folders.environment)
        write_sums(folders.environment)
        train_policy(training, folders.environment, folders.training, home=folder / "home")
        write_sums(folders.training)
        return folders

    def _copy_of_good(self, folder: Path) -> Folders:
        kept = self.root / "kept"
        if not kept.exists():
            self._trained(kept, EnvironmentConfig(id="CartPole-v1"), TrainingConfig.model_validate(TRAINING))
        for stage in ("environment", "training"):
            shutil.copytree(kept / stage, folder / stage)
        return Folders(folder / "environment", folder / "training", folder / "evaluation")

    def _evaluated(self, folders: Folders, config: EvaluationConfig = EVALUATION) -> None:
        evaluate_policy(config, folders.environment, folders.training, folders.evaluation)
        write_sums(folders.evaluation)


def _folder(case: ModuleType) -> Path:
    assert case.__file__ is not None
    return Path(case.__file__).parent


def _spoil(folder: Path, spoil: Any) -> None:
    """As if training had ended with the spoilt weights."""
    policy = load_policy(folder)
    spoil(policy)
    policy.save(folder)
    report = TrainingReport.read(folder / "training.json")
    report.model_copy(update={"policy_digest": sha256_file(folder / WEIGHTS)}).write(folder / "training.json")
    write_sums(folder)


def safety_of(case: ModuleType) -> SafetyConfig:
    """A flawed world's limits and objectives, and all else as it ships; for a policy of CartPole the shipped config."""
    given = getattr(case, "SAFETY", None)
    return SHIPPED.safety if given is None else SafetyConfig.model_validate(given)


def seeded() -> list[ModuleType]:
    """All files."""
    return [
        importlib.import_module(f"{__package__}.{kind}.{found.name}")
        for kind in KINDS
        for found in pkgutil.iter_modules([str(HERE / kind)])
    ]


def is_refused(outcome: Outcome) -> bool:
    """Whether it may not go on: a claim that is left undecided blocks too, as it does for good policies."""
    return bool(outcome.blocking)


def _outcome(case: SafetyCase, folder: Path, folders: Folders) -> Outcome:
    claims = {claim.id: claim for claim in case.claims}
    refuted = [name for name in case.decision.blocking if claims[name].verdict is Verdict.REFUTED]
    replayed = [
        name
        for name in case.decision.blocking
        if claims[name].counterexample is not None
        and replay(folder, name, folders.environment, folders.training, folders.evaluation).reproduced
    ]
    return Outcome(tuple(case.decision.blocking), tuple(refuted), tuple(replayed), case.decision.reason)
