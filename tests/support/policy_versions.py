"""Small but complete versions for tests of registry and promotion: real graph, manifest, case, envelope, episodes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import pyarrow as pa
import pyarrow.parquet as pq
from onnx import TensorProto, helper

from loomrl.evaluation.evaluate import evaluation_digest
from loomrl.promotion.envelope import RunFacts, envelope_tags, previous_case
from loomrl.promotion.package import build_package
from loomrl.runs.config import PolicyConfig
from loomrl.safety.case.decision import decide
from loomrl.storage.registry import PolicyVersion, Registry
from loomrl.system.files import sha256, sha256_file, write_atomic, write_sums
from loomrl.types import (
    Claim,
    Consequences,
    EnvironmentSpec,
    EvaluationReport,
    Interval,
    ParityReport,
    PolicyManifest,
    SafetyCase,
    ShadowReport,
    Verdict,
    Waiver,
)

FIRST_SEED = 1_000_000
SNAPSHOT = sha256(b"snapshot")


def graph(bias: float) -> bytes:
    """A policy of one layer; another bias is another policy."""
    node = helper.make_node("Add", ["observation", "bias"], ["action"])
    value = helper.make_tensor("bias", TensorProto.FLOAT, [1], [bias])
    shape = ["batch", 4]
    made = helper.make_graph(
        [node],
        "policy",
        [helper.make_tensor_value_info("observation", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("action", TensorProto.FLOAT, shape)],
        [value],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def make_artifacts(
    root: Path,
    policy: str = "cartpole",
    bias: float = 0.0,
    returns: Sequence[float] = (500.0,) * 40,
    passed: bool = True,
    waiver_expires: str | None = None,
    rechecked: dict[str, Verdict] | None = None,
    snapshot: str = SNAPSHOT,
    success_rate: Interval | None = None,
    optional: Verdict | None = None,
    p_value: float | None = None,
) -> Path:
    """What stages 3-5 leave in `artifacts/POLICY`, in small."""
    policy_digest = sha256(f"weights {bias}".encode())
    verdict = Verdict.WAIVED if waiver_expires else Verdict.SUPPORTED if passed else Verdict.REFUTED
    waiver = waiver_expires and Waiver(claim="pole_stays_up", person="Ada", reason="test", expires=waiver_expires)
    claim = Claim(
        id="pole_stays_up",
        stage="statistical limits",
        statement="the pole stays up",
        mandatory=True,
        method="clopper-pearson",
        verdict=verdict,
        waiver=waiver or None,
        confidence=0.95,
        p_value=p_value,
        num_samples=448,
        finding="it stays up" if passed else "it falls",
    )
    claims = [claim]
    if optional is not None:
        claims.append(
            claim.model_copy(update={"id": "robustness", "mandatory": False, "verdict": optional, "waiver": None})
        )
    _write_evaluation(root / "evaluation", policy_digest, snapshot, returns, success_rate)
    case = SafetyCase(
        policy_digest=policy_digest,
        snapshot_digest=snapshot,
        evaluation_digest=evaluation_digest(root / "evaluation"),
        claims=claims,
        decision=decide(claims),
    )
    case.write(root / "safety" / "case.json")
    _write_export(root / "export", policy, bias, policy_digest, snapshot, root / "safety" / "case.json", rechecked)
    for stage in ("safety", "evaluation", "export"):
        write_sums(root / stage)
    return root


def _write_evaluation(
    folder: Path, policy_digest: str, snapshot: str, returns: Sequence[float], success_rate: Interval | None
) -> None:
    seeds = [FIRST_SEED + index for index in range(len(returns))]
    mean = Interval(estimate=sum(returns) / len(returns), low=0, high=0, confidence=0.95, method="test")
    EvaluationReport(
        policy_digest=policy_digest,
        snapshot_digest=snapshot,
        num_episodes=len(returns),
        seeds=seeds,
        mean_return=mean,
        interquartile_mean_return=mean,
        mean_length=500,
        min_length=500,
        max_length=500,
        reward_threshold=475,
        success_rate=success_rate,
        data_valid=True,
        picture="returns.png",
        replay=None,
    ).write(folder / "evaluation.json")
    table = pa.table({"seed": seeds, "episode_return": [float(value) for value in returns]})
    pq.write_table(table, folder / "episodes.parquet")


def _write_export(
    folder: Path,
    policy: str,
    bias: float,
    policy_digest: str,
    snapshot: str,
    case: Path,
    rechecked: dict[str, Verdict] | None,
) -> None:
    write_atomic(folder / "policy.onnx", graph(bias))
    space = {"type": "Box", "shape": [4]}
    manifest = PolicyManifest(
        name=policy,
        onnx_sha256=sha256_file(folder / "policy.onnx"),
        policy_digest=policy_digest,
        snapshot_digest=snapshot,
        case_sha256=sha256_file(case),
        environment=EnvironmentSpec(
            name="CartPole-v1", version="1", entry_point="m:C", observation=space, action=space
        ),
        algorithm="ppo",
        action_kind="continuous",
        inputs={"observation": {"dtype": "float32", "shape": [-1, 4]}},
        outputs={"action": {"dtype": "float32", "shape": [-1, 4]}},
        probe_observations=[[0.0, 0.0, 0.0, 0.0]],
        probe_actions=[[bias] * 4],
        opset=17,
    )
    manifest.write(folder / "manifest.json")
    parity = ParityReport(
        num_observations=2,
        num_visited=1,
        num_random=1,
        action_mismatches=0,
        max_abs_difference={"action": 0.0},
        limit=1e-4,
        passed=True,
        rechecked_claims=rechecked or {"finiteness": Verdict.SUPPORTED},
    )
    parity.write(folder / "parity.json")


def register(tmp: Path, run_id: str, registry: Registry | None = None, **options: Any) -> PolicyVersion:
    """Make artifacts, package, sign and register them as the export task does."""
    registry = registry or Registry()
    policy, attempt = options.get("policy", "cartpole"), options.pop("attempt", None)
    more_tags = options.pop("tags", {})
    artifacts = make_artifacts(tmp / f"artifacts-{run_id}", **options)
    previous = previous_case(registry, policy)
    facts = RunFacts(
        policy=policy, run_id=run_id, created="2026-11-20T00:00:00+00:00", previous=previous, attempt=attempt
    )
    package = build_package(artifacts, tmp / f"package-{run_id}", facts)
    snapshot = options.get("snapshot", SNAPSHOT)
    tags = {"loomrl.snapshot_digest": snapshot, **envelope_tags(package), **more_tags}
    return registry.register(policy, package, run_id, tags)


def config(policy: str = "cartpole", **promotion: Any) -> PolicyConfig:
    """A config with the given promotion rules and few decisions demanded in shadow."""
    return PolicyConfig.model_validate(
        {
            "name": policy,
            "environment": {"id": "CartPole-v1"},
            "training": {"total_env_steps": 1_000},
            "evaluation": {},
            "safety": {},
            "export": {},
            "shadow": {"min_decisions": 100},
            "promotion": promotion,
        }
    )


def shadow_report(version: str, champion: str | None, passed: bool = True, num_decisions: int = 200) -> ShadowReport:
    """A shadow report about a version beside a champion."""
    claim = Claim(
        id="would_be_violations",
        stage="shadow",
        statement="would-be violations 0.3, limit 0.01",
        mandatory=True,
        method="wilson",
        verdict=Verdict.SUPPORTED if passed else Verdict.REFUTED,
    )
    followed = claim.model_copy(
        update={"id": "shadow.consequences.return", "statement": "it earns as much", "verdict": Verdict.SUPPORTED}
    )
    return ShadowReport(
        policy="cartpole",
        challenger_version=version,
        champion_version=champion,
        traffic="episodes",
        num_decisions=num_decisions,
        num_episodes=10,
        agreement=None,
        action_distance=None,
        value_difference=None,
        would_be_violations=None,
        latency_seconds={"p50": 0.001, "p99": 0.002},
        challenger_errors=0,
        bitwise_equal=True,
        claims=[claim, followed],
        passed=passed,
        consequences=Consequences(examined=True, num_episodes=384, num_decisions=150_000),
    )
