"""Small policies trained for real, with every stage's folder and manifest, for the rooms that examine policies."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.evaluation.config import EvaluationConfig
from loomrl.evaluation.evaluate import evaluate_policy
from loomrl.export.export import export_policy
from loomrl.runs.config import PolicyConfig
from loomrl.safety.config import ConstraintConfig, SafetyConfig
from loomrl.safety.gate import build_case
from loomrl.system.files import write_sums
from loomrl.training.config import TrainingConfig, ValidationConfig
from loomrl.training.train import train_policy
from loomrl.types import SafetyCase

PROJECT = Path(__file__).parents[2]
EVALUATION = EvaluationConfig(num_episodes=20, trajectory_episodes=5, bootstrap_replicates=200, render=False)
CONSTRAINTS = [
    ConstraintConfig(name="cart_stays_on_track", quantity="observation[0]", low=-2.4, high=2.4, max_probability=0.05),
    ConstraintConfig(
        name="pole_is_upright", quantity="observation[2]", low=-0.2, high=0.2, per="step", max_probability=0.05
    ),
]
SAFETY = SafetyConfig(num_episodes=80, num_envs=40, constraints=CONSTRAINTS)
OFF = {"enabled": False}


@dataclass(frozen=True)
class Policy:
    """The folders of one policy's stages."""

    root: Path

    @property
    def environment(self) -> Path:
        return self.root / "environment"

    @property
    def training(self) -> Path:
        return self.root / "training"

    @property
    def evaluation(self) -> Path:
        return self.root / "evaluation"


def train(root: Path, environment: EnvironmentConfig, training: TrainingConfig) -> Policy:
    """Snapshot, train and write the manifests."""
    policy = Policy(root)
    take_snapshot(environment, PROJECT, policy.environment)
    write_sums(policy.environment)
    train_policy(training, policy.environment, policy.training, home=root / "home")
    write_sums(policy.training)
    return policy


def train_cartpole(root: Path, total_env_steps: int) -> Policy:
    """CartPole: 2,048 steps learn next to nothing, 150,000 balance the pole for 500 steps."""
    validation = ValidationConfig(interval_env_steps=20_480, num_episodes=20, stop_at_return=500)
    parameters = {"num_envs": 16, "rollout_length": 128}
    training = TrainingConfig(seed=1, total_env_steps=total_env_steps, validation=validation, parameters=parameters)
    return train(root, EnvironmentConfig(id="CartPole-v1"), training)


def evaluate(policy: Policy, config: EvaluationConfig = EVALUATION) -> Policy:
    """Evaluate and write the manifest."""
    evaluate_policy(config, policy.environment, policy.training, policy.evaluation)
    write_sums(policy.evaluation)
    return policy


def through_the_stages(root: Path, environment: EnvironmentConfig, config: PolicyConfig) -> Policy:
    """Train, evaluate, examine and export, into `safety` and `export` beside the policy's folders."""
    policy = evaluate(train(root, environment, config.training), config.evaluation)
    case = examine(policy, root / "safety", config.safety)
    assert case.decision.passed, case.decision.reason
    write_sums(root / "safety")
    export_policy(config, policy.environment, policy.training, policy.evaluation, root / "safety", root / "export")
    return policy


def without_long_searches(**checks: Any) -> dict[str, Any]:
    """Settings of these checks, without the two that play most, for tests of what others say."""
    return {"disturbed_return": OFF, "falsification": OFF, **checks}


def examine(policy: Policy, output: Path, config: SafetyConfig = SAFETY) -> SafetyCase:
    """Build the safety case."""
    return build_case(config, policy.environment, policy.training, policy.evaluation, output)
