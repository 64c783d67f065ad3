"""policy, safety case -> policy.onnx, manifest and parity proof, and its shield; or a refusal, and no graph."""

from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.policies.loading import load_policy
from loomrl.algorithms.policies.onnx_graph import INPUT, build_graph, tensors
from loomrl.algorithms.policies.policy import WEIGHTS, TrainedPolicy
from loomrl.environment.finite.of_environment import shield_around
from loomrl.environment.make import make_env
from loomrl.errors import GateRefused
from loomrl.export import formats
from loomrl.export.admission import CASE, admit
from loomrl.export.observations import random_observations, visited_observations
from loomrl.export.parity import prove_parity
from loomrl.safety.case.evidence import FOLDER as EVIDENCE
from loomrl.safety.case.standing import failed_on_graph
from loomrl.serving.policy.model import GRAPH, MANIFEST, SHIELD, STATE_IN, ServedPolicy, open_session
from loomrl.serving.policy.shield import CERTIFIED, Certified
from loomrl.system.files import read_json, sha256, sha256_file, write_atomic
from loomrl.types import TORCH_FILES, EnvironmentSnapshot, ParityReport, PolicyManifest, SafetyCase

if TYPE_CHECKING:
    from loomrl.runs.config import PolicyConfig

PARITY, STABILITY = "parity.json", "stability"
_PROBES = 32
_PROBE_NUMBERS = 65_536  # probes together hold at most this many numbers: a manifest of images stays readable
_OUT_OF_DISTRIBUTION = "ood.json"


def export_policy(
    config: "PolicyConfig",
    snapshot_folder: Path,
    policy_folder: Path,
    evaluation_folder: Path,
    safety_folder: Path,
    output_folder: Path,
) -> PolicyManifest:
    """Write `policy.onnx`, `manifest.json`, `parity.json` and further formats; the same inputs give the same bytes.

    Raises:
        GateRefused: when the case blocks, parity fails, or a local claim does not hold on the graph. Then there is no
            `policy.onnx`; where parity was measured, `parity.json` says what was found.
        ArtifactError: when an input is missing, damaged or about another policy, or a file cannot be written.
        ConfigError: when one of `export.formats` cannot express the policy; there is no `policy.onnx` then.
    """
    for name in (GRAPH, MANIFEST, PARITY, SHIELD, CERTIFIED, *TORCH_FILES.values()):
        (output_folder / name).unlink(missing_ok=True)
    case = admit(safety_folder, policy_folder, snapshot_folder)
    network = load_policy(policy_folder)
    graph = build_graph(network, config.export.opset)
    visited = visited_observations(evaluation_folder, network.observation_space, config.export.parity_visited)
    shield = _shield(snapshot_folder)
    manifest = _manifest(config, network, graph, visited, snapshot_folder, policy_folder, safety_folder)
    if shield is not None:
        manifest = manifest.model_copy(update={"shield_sha256": sha256(shield)})
    served = ServedPolicy(graph, manifest, version="export")
    random = random_observations(visited, network.observation_space, config.export.parity_random)
    prove = partial(prove_parity, network, visited=visited, random=random, limit=config.export.parity_limit)
    report = prove(served)
    _demand_parity("graph", report, report, output_folder)
    files = {one: formats.build(network, one) for one in config.export.formats}
    read_back = {one: formats.read(data, one, network.output_names) for one, data in files.items()}
    proofs = {one: prove(exported) for one, exported in read_back.items()}
    report = report.model_copy(update={"formats": proofs})
    for one, proof in proofs.items():
        _demand_parity(one, proof, report, output_folder)
    report, certified = _recheck(config, served, report, snapshot_folder, evaluation_folder)
    report.write(output_folder / PARITY)
    _demand_rechecked(report, case)
    if certified is not None:
        boxes, on_uncertified = certified
        described = {"sha256": sha256(boxes), "on_uncertified": on_uncertified}
        manifest = manifest.model_copy(update={"certified": described})
        write_atomic(output_folder / CERTIFIED, boxes)
    if shield is not None:
        write_atomic(output_folder / SHIELD, shield)
    for one, data in files.items():
        write_atomic(output_folder / TORCH_FILES[one], data)
    written = {one: {"file": TORCH_FILES[one], "sha256": sha256(data)} for one, data in files.items()}
    manifest = manifest.model_copy(update={"formats": written})
    manifest.write(output_folder / MANIFEST)
    write_atomic(output_folder / GRAPH, graph)
    ServedPolicy.load(output_folder)  # what serving will do, done once before anyone relies on it
    return manifest


def _demand_parity(exported: str, proof: ParityReport, report: ParityReport, output_folder: Path) -> None:
    """Raises `GateRefused` where something does not act like the network; the whole report is written then."""
    if proof.passed:
        return
    report.write(output_folder / PARITY)
    worst = max(proof.max_scaled_difference, key=lambda name: proof.max_scaled_difference[name])
    raise GateRefused(
        f"the {exported} does not act like the network: {proof.action_mismatches} action mismatches in "
        f"{proof.num_observations}, largest difference {proof.max_scaled_difference[worst]:.3g} in {worst!r}, "
        f"limit {proof.limit:g}; see {output_folder / PARITY}"
    )


def _recheck(
    config: "PolicyConfig", served: ServedPolicy, report: ParityReport, snapshot_folder: Path, evaluation_folder: Path
) -> tuple[ParityReport, tuple[bytes, str] | None]:
    """The gate's local claims on the graph itself, because the graph is what ships; and what is certified about it."""
    from loomrl.safety.gate import recheck_local

    with TemporaryDirectory() as folder:
        verdicts = recheck_local(served, config.safety, snapshot_folder, evaluation_folder, Path(folder))
        certified = _certified(config, Path(folder))
    return report.model_copy(update={"rechecked_claims": dict(sorted(verdicts.items()))}), certified


def _certified(config: "PolicyConfig", evidence_folder: Path) -> tuple[bytes, str] | None:
    """The boxes in which the action is certified, as a file, and what is done outside of them; None where not asked."""
    if config.safety.checks.get(STABILITY, {}).get("on_uncertified") is None:
        return None
    path = evidence_folder / EVIDENCE / f"{STABILITY}.json"
    found = read_json(path)["when_served"] if path.is_file() else {"low": []}
    if not found["low"]:
        raise GateRefused(
            f"safety.checks.{STABILITY}.on_uncertified is set, and nothing is certified about the graph: take it away, "
            "or raise max_boxes"
        )
    boxes = Certified(*(np.asarray(found[end], np.float64) for end in ("low", "high")))
    return boxes.to_bytes(), found["on_uncertified"]


def _demand_rechecked(report: ParityReport, case: SafetyCase) -> None:
    """A claim the network met must hold for the graph. One it did not meet was waived or is not mandatory."""
    found = report.rechecked_claims
    failed = failed_on_graph(case, found)
    if failed:
        listed = "; ".join(f"{name} is {found[name].value}" for name in failed)
        raise GateRefused(f"claims that held for the network do not hold for the graph: {listed}")


def _manifest(
    config: "PolicyConfig",
    network: TrainedPolicy,
    graph: bytes,
    visited: NDArray[Any],
    snapshot_folder: Path,
    policy_folder: Path,
    safety_folder: Path,
) -> PolicyManifest:
    session = open_session(graph, config.name)
    inputs, outputs = tensors(session)
    probes = visited[_probe_rows(visited)]
    feeds = {INPUT: probes}
    if network.memory_size:  # probed as at an episode's start
        feeds[STATE_IN] = np.zeros((len(probes), network.memory_size), np.float32)
    (actions,) = session.run(["action"], feeds)
    snapshot = EnvironmentSnapshot.read(snapshot_folder / "snapshot.json")
    calibration = safety_folder / _OUT_OF_DISTRIBUTION
    return PolicyManifest(
        safety_critical=config.safety.safety_critical,
        name=config.name,
        onnx_sha256=sha256(graph),
        policy_digest=sha256_file(policy_folder / WEIGHTS),
        snapshot_digest=snapshot.digest,
        case_sha256=sha256_file(safety_folder / CASE),
        environment=snapshot.spec,
        algorithm=network.architecture.algorithm,
        action_kind=network.action_kind,
        inputs=inputs,
        outputs=outputs,
        probe_observations=probes.tolist(),
        probe_actions=actions.tolist(),
        out_of_distribution=read_json(calibration) if calibration.is_file() else None,
        constraints=[one.model_dump(mode="json") for one in config.safety.constraints],
        opset=config.export.opset,
    )


def _shield(snapshot_folder: Path) -> bytes | None:
    """What stands between the policy and the world, in production as in training."""
    with closing(make_env(snapshot_folder)) as env:
        shield = shield_around(env)
    return None if shield is None else shield.to_bytes()


def _probe_rows(visited: NDArray[Any]) -> NDArray[np.int64]:
    size = int(np.prod(visited.shape[1:], dtype=np.int64))
    count = max(1, min(_PROBES, _PROBE_NUMBERS // max(1, size), len(visited)))
    return np.unique(np.linspace(0, len(visited) - 1, count).astype(np.int64))
