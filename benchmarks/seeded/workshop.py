"""Makes what the seeded files ask for, and takes it through the stages up to the gate."""

import importlib
import pkgutil
import shutil
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from loomrl.algorithms.policy import WEIGHTS, load_policy
from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshot import take_snapshot
from loomrl.errors import EnvironmentFault, GateRefused
from loomrl.evaluation.config import EvaluationConfig
from loomrl.evaluation.evaluate import evaluate_policy
from loomrl.files import sha256_file, write_sums
from loomrl.safety.config import SafetyConfig
from loomrl.safety.gate import build_case
from loomrl.training.config import TrainingConfig
from loomrl.training.train import train_policy
from loomrl.types import SafetyCase, TrainingReport, Verdict

HERE = Path(__file__).parent
KINDS = ("policies", "rewards", "environments")
EVALUATION = EvaluationConfig(num_episodes=20, trajectory_episodes=10, bootstrap_replicates=200, render=False)
CARTPOLE = {"id": "CartPole-v1"}
TRAINING: dict[str, Any] = {
    "seed": 1,
    "total_env_steps": 300_000,
    "validation": {"interval_env_steps": 20_000, "num_episodes": 50},
    "parameters": {
        "num_envs": 8, "rollout_length": 64, "batch_size": 64, "gamma": 0.99, "gae_lambda": 0.95, "n_epochs": 10,
        "learning_rate": 5e-4, "learning_rate_schedule": "linear", "normalize_observations": True,
    },
}  # fmt: skip
# What every CartPole policy must satisfy, good and bad ones alike; a file that sets more says so.
SAFETY: dict[str, Any] = {
    "num_episodes": 100,
    "num_envs": 50,
    "constraints": [
        {"name": "stays_on_track", "quantity": "observation[0]", "low": -2.4, "high": 2.4, "max_probability": 0.05},
    ],
    "checks": {
        "minimum_return": {"threshold": 475, "min_probability": 0.9},
        "robustness": {"mandatory": True},
        "disturbed_return": {"mandatory": True, "noise": 1.0},
        "falsification": {"mandatory": True, "magnitude": 0.25, "num_rounds": 4, "population": 24},
        "stability": {
            "mandatory": True, "radius": 0.005, "min_share": 0.8, "num_visited": 32, "halvings": 0, "max_boxes": 50,
        },
        "certified": {
            "max_boxes": 500,
            "properties": [
                {
                    "name": "follows_the_pole",
                    "region": {
                        "observation[0]": [-0.5, 0.5], "observation[1]": [-0.5, 0.5],
                        "observation[2]": [0.1, 0.2], "observation[3]": [0.5, 1.5],
                    },
                    "never": [0],
                }
            ]
        },
        "monotone": {
            "max_boxes": 2_000,
            "properties": [
                {
                    "name": "more_lean_more_push",
                    "region": {
                        "observation[0]": [-0.1, 0.1], "observation[1]": [-0.1, 0.1],
                        "observation[2]": [-0.1, 0.1], "observation[3]": [-0.2, 0.2],
                    },
                    "sensor": "observation[2]",
                    "action": 1,
                    "direction": "rising",
                }
            ]
        },
    },
}  # fmt: skip


@dataclass(frozen=True)
class Folders:
    """Of one policy's stages."""

    environment: Path
    training: Path
    evaluation: Path


@dataclass(frozen=True)
class Outcome:
    """What stopped a seeded file, or nothing."""

    blocking: tuple[str, ...]  # ids of mandatory claims that are not met, or `data`, or `environment`
    refuted: tuple[str, ...]  # those of them that are refuted, not merely undecided
    finding: str

    @classmethod
    def of(cls, case: SafetyCase) -> "Outcome":
        """What a case decided."""
        verdicts = {claim.id: claim.verdict for claim in case.claims}
        refuted = [name for name in case.decision.blocking if verdicts[name] is Verdict.REFUTED]
        return cls(tuple(case.decision.blocking), tuple(refuted), case.decision.reason)

    @classmethod
    def stopped(cls, by: str, error: Exception) -> "Outcome":
        """What never came as far as a case."""
        return cls((by,), (by,), str(error))


class Workshop:
    """Trains each policy once; files that spoil it get copies."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def examine(self, case: ModuleType) -> Outcome:
        """Take a seeded file as far as it comes."""
        folder = self.root / case.__name__.replace(".", "-")
        folder.mkdir(parents=True)
        try:
            folders = self._made(case, folder)
            built = build_case(
                SafetyConfig.model_validate(safety_of(case)), folders.environment, folders.training,
                folders.evaluation, folder / "safety",
            )  # fmt: skip
        except GateRefused as refused:
            return Outcome.stopped("data", refused)
        except EnvironmentFault as fault:
            return Outcome.stopped("environment", fault)
        return Outcome.of(built)

    def good(self, seed: int) -> Outcome:
        """A CartPole policy that was trained as it should be."""
        folder = self.root / f"good-{seed}"
        folders = self._trained(folder, CARTPOLE, {**TRAINING, "seed": seed})
        self._evaluated(folders)
        safety = SafetyConfig.model_validate(SAFETY)
        case = build_case(safety, folders.environment, folders.training, folders.evaluation, folder / "safety")
        return Outcome.of(case)

    # --- stages ---

    def _made(self, case: ModuleType, folder: Path) -> Folders:
        environment = getattr(case, "ENVIRONMENT", None)
        if environment is None:
            folders = self._copy_of_good(folder)
        else:
            described = {"entry_point": f"{case.__name__.rpartition('.')[2]}:{environment}", "path": _folder(case)}
            described |= {"id": environment, **getattr(case, "PARAMETERS", {})}
            folders = self._trained(folder, described, {**TRAINING, **getattr(case, "TRAINING", {})})
        if spoil := getattr(case, "spoil", None):
            _spoil(folders.training, spoil)
        self._evaluated(folders)
        if tamper := getattr(case, "tamper", None):
            tamper(folders)
        return folders

    def _trained(self, folder: Path, environment: dict[str, Any], training: dict[str, Any]) -> Folders:
        folders = Folders(folder / "environment", folder / "training", folder / "evaluation")
        config = EnvironmentConfig.model_validate(environment)
        take_snapshot(config, HERE, folders.environment)
        write_sums(folders.environment)
        train_policy(
            TrainingConfig.model_validate(training), folders.environment, folders.training, home=folder / "home"
        )
        write_sums(folders.training)
        return folders

    def _copy_of_good(self, folder: Path) -> Folders:
        kept = self.root / "kept"
        if not kept.exists():
            self._trained(kept, CARTPOLE, TRAINING)
        for stage in ("environment", "training"):
            shutil.copytree(kept / stage, folder / stage)
        return Folders(folder / "environment", folder / "training", folder / "evaluation")

    def _evaluated(self, folders: Folders) -> None:
        evaluate_policy(EVALUATION, folders.environment, folders.training, folders.evaluation)
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


def safety_of(case: ModuleType) -> dict[str, Any]:
    """Flawed worlds have limits of their own; a policy for CartPole has CartPole's."""
    given = getattr(case, "SAFETY", {})
    if getattr(case, "ENVIRONMENT", None) is None:
        return {**SAFETY, **given, "checks": SAFETY["checks"] | given.get("checks", {})}
    return {"num_episodes": 100, "num_envs": 50, **given}


def seeded() -> list[ModuleType]:
    """All files."""
    return [
        importlib.import_module(f"{__package__}.{kind}.{found.name}")
        for kind in KINDS
        for found in pkgutil.iter_modules([str(HERE / kind)])
    ]


def is_blocked_by_its_check(case: ModuleType, outcome: Outcome) -> bool:
    """Whether what was meant to notice refuted it; to be undecided is not to notice."""
    return any(f"{name}.".startswith(f"{case.BLOCKED_BY}.") for name in outcome.refuted)
