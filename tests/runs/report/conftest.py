"""A finished run of CartPole: real documents in a project's `artifacts/`, and its record."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from loomrl.evaluation.data_gate import DataValidation, ExpectationResult
from loomrl.storage.run_record import RunRecord, StageRecord, run_folder, write_run
from loomrl.system.files import digest_folder, sha256, sha256_file, write_json, write_sums
from loomrl.types import (
    Bound,
    Claim,
    Consequences,
    Continuation,
    Counterexample,
    DynamicsFingerprint,
    EnvironmentSnapshot,
    EnvironmentSpec,
    EvaluationReport,
    Evidence,
    GateDecision,
    Interval,
    ParityReport,
    PolicyManifest,
    PromotionDecision,
    SafetyCase,
    ShadowReport,
    TrainingReport,
    Verdict,
)

SPEC = EnvironmentSpec(
    name="CartPole-v1",
    version="1",
    entry_point="gymnasium.envs.classic_control.cartpole:CartPoleEnv",
    max_episode_steps=500,
    reward_threshold=475.0,
    observation={"type": "Box", "shape": [4]},
    action={"type": "Discrete", "n": 2},
)
SNAPSHOT = EnvironmentSnapshot(
    digest=sha256(b"snapshot"),
    spec=SPEC,
    source_digest=sha256(b"source"),
    source_root="gymnasium",
    source_roots=["gymnasium"],
    dependencies={"gymnasium": "1.4.0"},
    dynamics=DynamicsFingerprint(
        num_episodes=8,
        num_steps=200,
        exact=sha256(b"exact"),
        toleranced=sha256(b"coarse"),
        tolerance=1e-4,
        arithmetic=sha256(b"arithmetic"),
        rollouts=sha256(b"rollouts"),
    ),
)
POLICY_DIGEST = sha256(b"weights")
SECONDS = {"environment": 1.2, "training": 74.0, "evaluation": 9.4, "safety": 21.0, "export": 3.1}
VERDICTS = {
    "environment": "snapshot of CartPole-v1",
    "training": "stopped early, last validation 500",
    "evaluation": "interquartile mean 498.2",
    "safety": "gate passed, 7 claims",
    "export": "0 mismatches in 8,192 observations",
}


def interval(estimate: float, low: float, high: float) -> Interval:
    return Interval(estimate=estimate, low=low, high=high, confidence=0.95, method="percentile bootstrap")


def curves() -> dict[str, Any]:
    steps = np.arange(1, 60) * 2048
    noise = np.random.default_rng(0).normal(size=(59, 3))
    updates = [
        {
            "step": int(step),
            "episode_return": float(20 + 480 / (1 + math.exp(-(index - 20) / 5)) + 6 * noise[index, 0]),
            "entropy": float(0.69 * math.exp(-index / 60) + 0.01 * noise[index, 1]),
            "approx_kl": float(abs(0.008 + 0.004 * noise[index, 2])),
            "value_loss": float(40 * math.exp(-index / 15) + 0.4),
        }
        for index, step in enumerate(steps)
    ]
    validations = [{"step": row["step"], "mean_return": row["episode_return"] + 10} for row in updates[9::10]]
    return {"updates": updates, "validations": validations}


def claims() -> list[Claim]:
    return [
        Claim(
            id="limits.pole_stays_up",
            stage="statistical limits",
            statement="P(an episode violates pole_stays_up) is at most 0.01",
            mandatory=True,
            method="Clopper–Pearson upper bound, Holm over 2 constraints, on held-out seeds",
            verdict=Verdict.SUPPORTED,
            assumptions=["episodes on different seeds are independent"],
            confidence=0.95,
            bound=Bound(kind="clopper-pearson upper", measured=0.0093, limit=0.01),
            num_samples=320,
            evidence=[Evidence(uri="evidence/limits.parquet", sha256=sha256(b"limits"))],
        ),
        Claim(
            id="bounds.action",
            stage="certified local properties",
            statement="Every action lies in the action space",
            mandatory=True,
            method="the policy takes the largest of 2 logits",
            verdict=Verdict.PROVED,
        ),
    ]


def write_stage(folder: Path, name: str) -> None:
    """Write one stage's documents as the stage itself does."""
    output = folder / name
    output.mkdir(parents=True, exist_ok=True)
    WRITERS[name](folder, output)
    write_sums(output)


def _environment(folder: Path, output: Path) -> None:
    SNAPSHOT.write(output / "snapshot.json")


def _training(folder: Path, output: Path) -> None:
    write_json(output / "curves.json", curves())
    TrainingReport(
        algorithm="ppo",
        seed=1,
        total_env_steps=120_832,
        stop_reason="stagnation",
        snapshot_digest=SNAPSHOT.digest,
        policy_digest=POLICY_DIGEST,
        parameters={"gamma": 0.99, "gae_lambda": 0.95},
        final_metrics={"entropy": 0.26, "value_loss": 0.42},
        num_threads=1,
        processor="x86_64 avx2",
    ).write(output / "training.json")


def _evaluation(folder: Path, output: Path) -> None:
    Image.new("RGB", (320, 120), "white").save(output / "returns.png")
    frames = [Image.new("RGB", (60, 40), (255, 4 * index, 0)) for index in range(3)]
    frames[0].save(output / "episode.gif", save_all=True, append_images=frames[1:])
    DataValidation(
        success=True,
        num_expectations=1,
        num_failed=0,
        expectations=[
            ExpectationResult(
                table="episodes",
                kind="expect_column_values_to_be_unique",
                column="seed",
                statement="seeds are unique",
                success=True,
                observed="all 100 rows",
                element_count=100,
                unexpected_count=0,
            )
        ],
    ).write(output / "data_validation.json")
    EvaluationReport(
        policy_digest=POLICY_DIGEST,
        snapshot_digest=SNAPSHOT.digest,
        num_episodes=100,
        seeds=list(range(1_000_000, 1_000_100)),
        mean_return=interval(494.1, 489.0, 498.0),
        interquartile_mean_return=interval(498.2, 495.7, 500.0),
        mean_length=494.1,
        min_length=391,
        max_length=500,
        reward_threshold=475.0,
        success_rate=interval(0.93, 0.861, 0.971),
        data_valid=True,
        picture="returns.png",
        replay="episode.gif",
    ).write(output / "evaluation.json")


def _safety(folder: Path, output: Path) -> None:
    SafetyCase(
        policy_digest=POLICY_DIGEST,
        snapshot_digest=SNAPSHOT.digest,
        evaluation_digest=digest_folder(folder / "evaluation"),
        claims=claims(),
        decision=GateDecision(passed=True, blocking=[], reason="all mandatory claims are proved or supported"),
        controls={"ISO/IEC 42001 A.6.2.4": ["limits.pole_stays_up"]},
        tools={"scipy": "1.17.0"},
    ).write(output / "case.json")


def _export(folder: Path, output: Path) -> None:
    PolicyManifest(
        name="cartpole",
        onnx_sha256=sha256(b"onnx"),
        policy_digest=POLICY_DIGEST,
        snapshot_digest=SNAPSHOT.digest,
        case_sha256=sha256_file(folder / "safety" / "case.json"),
        environment=SPEC,
        algorithm="ppo",
        action_kind="discrete",
        inputs={"observation": {"dtype": "float32", "shape": [-1, 4]}},
        outputs={"action": {"dtype": "int64", "shape": [-1]}, "logits": {"dtype": "float32", "shape": [-1, 2]}},
        probe_observations=[[0.0, 0.0, 0.0, 0.0]],
        probe_actions=[1],
        opset=17,
    ).write(output / "manifest.json")
    ParityReport(
        num_observations=8192,
        num_visited=4096,
        num_random=4096,
        action_mismatches=0,
        max_abs_difference={"logits": 1.6e-7, "value": 2.1e-6},
        limit=1e-4,
        passed=True,
        rechecked_claims={"bounds.action": Verdict.PROVED},
    ).write(output / "parity.json")


WRITERS = {
    "environment": _environment,
    "training": _training,
    "evaluation": _evaluation,
    "safety": _safety,
    "export": _export,
}


def shadow_report() -> ShadowReport:
    return ShadowReport(
        policy="cartpole",
        challenger_version="3",
        champion_version="2",
        traffic="episodes",
        num_decisions=4870,
        num_episodes=10,
        agreement=interval(0.982, 0.978, 0.986),
        action_distance=interval(0.018, 0.014, 0.022),
        value_difference=interval(0.4, -0.1, 0.9),
        would_be_violations=interval(0.0, 0.0, 0.0008),
        latency_seconds={"p50": 0.00041, "p99": 0.0023},
        challenger_errors=0,
        bitwise_equal=None,
        claims=claims()[:1],
        passed=True,
        consequences=Consequences(
            examined=True,
            num_episodes=384,
            num_decisions=190_000,
            num_disagreements=700,
            num_continued=350,
            return_difference=interval(-1.5, -3.0, 0.0),
            return_scale=470.0,
            burst_steps=4,
            num_disturbed=320,
            num_failed=71,
            worst=[
                Continuation(
                    seed=6_000_014,
                    step=9,
                    observation=[-0.00885, -0.949, 0.0146, 1.405],
                    champion_action=1,
                    challenger_action=0,
                    champion_return=500.0,
                    challenger_return=14.0,
                    violated=["pole_stays_up"],
                    disturbed="action 0 held for 4 steps from step 5 on",
                )
            ],
        ),
    )


def promotion_decision() -> PromotionDecision:
    return PromotionDecision(
        policy="cartpole",
        version="3",
        champion_before="2",
        decision="promoted",
        reasons=["the safety case passed", "the paired mean return is not below the champion's"],
        rules=claims(),
        inputs_digest=sha256(b"inputs"),
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose five stages have run."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "dvc.yaml").write_text("stages: {}\n")
    for name in WRITERS:
        write_stage(root / "artifacts" / "cartpole", name)
    return root


@pytest.fixture
def make_run(loomrl_home: Path, project: Path) -> Callable[..., RunRecord]:
    """Writes the record of a run that promoted its version; keyword arguments change the record."""

    def make(**changes: Any) -> RunRecord:
        folder = project / "artifacts" / "cartpole"
        stages = [
            StageRecord(
                name=name,
                status="ran",
                seconds=SECONDS[name],
                verdict=VERDICTS[name],
                digest=digest_folder(folder / name),
            )
            for name in WRITERS
        ]
        stages += [
            StageRecord(name="shadow", status="ran", seconds=12.0, verdict="98.2 % agreement"),
            StageRecord(name="promotion", status="ran", seconds=1.0, verdict="version 3 is champion"),
        ]
        record = RunRecord(
            run_id="20261120-093015-3f9a1c",
            policy="cartpole",
            state="promoted",
            started="2026-11-20T09:30:15.120+00:00",
            finished="2026-11-20T09:32:17.003+00:00",
            config={"name": "cartpole", "training": {"algorithm": "ppo", "seed": 1}, "export": {}},
            overrides={"training.seed": 1},
            git_commit="5d5d4ed0c2f14b7e9a00c0ffee5d5d4ed0c2f14b",
            git_dirty=True,
            stages=stages,
            mlflow_run_id="0f" * 16,
            version="3",
            champion_before="2",
            shadow=shadow_report(),
            decision=promotion_decision(),
        ).model_copy(update=changes)
        write_run(record)
        assert run_folder(record.run_id).is_dir()
        return record

    return make


@pytest.fixture
def refuted() -> Claim:
    """A claim that failed, with an episode that shows it."""
    return claims()[0].model_copy(
        update={
            "verdict": Verdict.REFUTED,
            "bound": Bound(kind="clopper-pearson upper", measured=0.84, limit=0.01),
            "counterexample": Counterexample(
                description="The pole falls at step 41.",
                seed=2_000_007,
                evidence=None,
                replay_command="loomrl safety replay cartpole --seed 2000007",
            ),
        }
    )
