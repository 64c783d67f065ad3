"""The Prism gate: runs every check, applies waivers, decides, and writes the safety case.

The case holds no time, host, path, run id or revision: equal inputs give equal bytes. An expiry date of a waiver is
recorded here and compared with the calendar where it matters, by `loomrl.safety.case.standing` at export and promotion.
"""

import importlib.metadata
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from loomrl.errors import ConfigError
from loomrl.evaluation.evaluate import evaluation_digest, play
from loomrl.evaluation.tables import TRAJECTORIES, read_table, stack_columns
from loomrl.safety.case.decision import MET, decide
from loomrl.safety.case.document import CASE
from loomrl.safety.case.evidence import EvidenceWriter
from loomrl.safety.check import (
    PLACEHOLDER,
    PROVENANCE,
    STAGES,
    Check,
    CheckConfig,
    Context,
    Demand,
    scope_of,
    why_not_applicable,
)
from loomrl.safety.config import ConstraintConfig, SafetyConfig, WaiverConfig
from loomrl.safety.constraints import check_against
from loomrl.safety.controls import map_controls
from loomrl.safety.probing.probes import act_with, is_recurrent
from loomrl.safety.probing.repeats import label_limits
from loomrl.safety.registry import configured_checks
from loomrl.system.files import sha256_file
from loomrl.system.threads import one_thread
from loomrl.types import (
    Claim,
    Episode,
    LabelKind,
    Policy,
    SafetyCase,
    Verdict,
    Waiver,
)

TOOLS = (
    *("gymnasium", "lark", "loomrl", "numba", "numpy", "onnx", "onnxruntime"),
    *("pyarrow", "safetensors", "scipy", "torch"),
)


@one_thread()
def build_case(
    config: SafetyConfig, snapshot_folder: Path, policy_folder: Path, evaluation_folder: Path, output_folder: Path
) -> SafetyCase:
    """Examine a policy and write `case.json`, `ood.json` and `evidence/` into `output_folder`; returns the case.

    Ends well also when claims are refuted: the decision stands in the case. On an error no case is written, and the
    evidence of a former one in the folder is gone. torch runs on one thread meanwhile.

    Raises:
        ConfigError: for a check, constraint or waiver that does not fit.
        ArtifactError: when an input cannot be read.
        EnvironmentFault: when the environment breaks its API.
    """
    from loomrl.algorithms.policies.loading import load_policy
    from loomrl.algorithms.policies.policy import WEIGHTS

    checks = configured_checks(config)
    check_limits(config, snapshot_folder)
    policy = load_policy(policy_folder)
    writer = EvidenceWriter(output_folder)
    episodes = play(act_with(policy), snapshot_folder, config.seeds, config.num_envs, "safety")
    writer.episodes("episodes", episodes)
    context = _context(policy, config, snapshot_folder, policy_folder, evaluation_folder, episodes, writer)
    reasons = {check.NAME: why_not_applicable(check, context) for check, _ in checks}
    applicable = [(check, settings) for check, settings in checks if reasons[check.NAME] is None]
    claims = [
        _noted(check, _scoped(check, settings, claim), policy)
        for check, settings in applicable
        for claim in check.examine(context.of(check, settings), settings)
    ]
    _demand_distinct_ids(claims)
    limits: dict[str, ConstraintConfig] = {}
    disturbed: dict[str, ConstraintConfig] = {}
    demands: dict[str, Demand] = {}
    for check, settings in applicable:
        its_own = context.of(check, settings)
        limits |= _told_by(check, "episode_limits", its_own, settings)
        disturbed |= _told_by(check, "disturbed_limits", its_own, settings)
        demands |= _told_by(check, "demands", its_own, settings)
    claims = label_limits(_with_sound_labels(claims), limits, disturbed, demands, context)
    claims = [_without_alternative(claim) for claim in claims]
    claims = sorted(apply_waivers(claims, config.waivers), key=lambda claim: (STAGES.index(claim.stage), claim.id))
    case = SafetyCase(
        policy_digest=sha256_file(policy_folder / WEIGHTS),
        snapshot_digest=context.snapshot.digest,
        evaluation_digest=evaluation_digest(evaluation_folder),
        claims=[_located(claim, output_folder) for claim in claims],
        decision=decide(claims),
        controls=map_controls(claims),
        not_applicable={name: reason for name, reason in reasons.items() if reason is not None},
        tools={name: importlib.metadata.version(name) for name in TOOLS},
    )
    case.write(output_folder / CASE)
    return case


@one_thread()
def recheck_local(
    policy: Policy,
    config: SafetyConfig,
    snapshot_folder: Path,
    evaluation_folder: Path,
    evidence_folder: Path | None = None,
) -> dict[str, Verdict]:
    """The verdicts of all local claims, by claim id, on another form of the policy, such as the exported graph.

    `policy` is any callable from raw observations (B, *obs) to actions (B, *action). Where it also has
    `outputs(obs) -> dict[str, ndarray]`, finiteness is demanded of all of them. Claims are tried on the
    observations recorded at evaluation, and on the same random and extreme ones as in the case. Evidence is kept where
    a folder is given.

    Raises:
        ConfigError: for a check that does not fit.
        ArtifactError: when the snapshot or the recorded observations cannot be read.
    """
    context = _context(policy, config, snapshot_folder, None, evaluation_folder, [], EvidenceWriter(evidence_folder))
    local = [
        (check, settings)
        for check, settings in configured_checks(config)
        if check.LOCAL and why_not_applicable(check, context) is None
    ]
    claims = [claim for check, settings in local for claim in check.examine(context.of(check, settings), settings)]
    return {claim.id: claim.verdict for claim in claims}


def check_limits(config: SafetyConfig, snapshot_folder: Path) -> None:
    """Find what could not be examined in this environment, before a policy is trained in it.

    Raises:
        ConfigError: for a check that is unknown or must not be switched off, a limit on a component the environment
            does not have, or a check that needs what the environment does not tell.
    """
    from loomrl.environment.snapshots.snapshot import load_snapshot
    from loomrl.environment.spaces import space_from_json

    spec = load_snapshot(snapshot_folder).spec
    observation_space, action_space = space_from_json(spec.observation), space_from_json(spec.action)
    for check, settings in configured_checks(config):
        if check_spaces := getattr(check, "check_spaces", None):
            check_spaces(settings, observation_space, action_space)
        if check_environment := getattr(check, "check_environment", None):
            check_environment(settings, snapshot_folder)
    check_against(config.constraints, observation_space, action_space)


def apply_waivers(claims: Sequence[Claim], waivers: Sequence[WaiverConfig]) -> list[Claim]:
    """The claims in their order, those waived that are not met and that a named person accepts; a claim that is met
    keeps its verdict.

    Raises:
        ConfigError: when a waiver names no claim, or one about provenance.
    """
    by_id = {claim.id: claim for claim in claims}
    for waiver in waivers:
        claim = by_id.get(waiver.claim)
        if claim is None:
            raise ConfigError(f"safety.waivers: no claim {waiver.claim!r}; claims: {', '.join(sorted(by_id))}")
        if claim.stage == PROVENANCE:
            raise ConfigError(f"safety.waivers: {waiver.claim}: claims about provenance cannot be waived")
        if claim.verdict not in MET:
            by_id[claim.id] = _waive(claim, waiver)
    return [by_id[claim.id] for claim in claims]


def _waive(claim: Claim, waiver: WaiverConfig) -> Claim:
    recorded = Waiver(
        claim=waiver.claim, person=waiver.person, reason=waiver.reason, expires=waiver.expires.isoformat()
    )
    changes = {"verdict": Verdict.WAIVED, "waiver": recorded, "verdict_before_waiver": claim.verdict}
    return claim.model_copy(update=changes)


def _context(
    policy: Policy,
    config: SafetyConfig,
    snapshot_folder: Path,
    policy_folder: Path | None,
    evaluation_folder: Path,
    episodes: list[Episode],
    writer: EvidenceWriter,
) -> Context:
    from loomrl.environment.snapshots.snapshot import load_snapshot
    from loomrl.environment.spaces import space_from_json

    snapshot = load_snapshot(snapshot_folder)
    observation_space = space_from_json(snapshot.spec.observation)
    return Context(
        policy=policy,
        snapshot=snapshot,
        config=config,
        snapshot_folder=snapshot_folder,
        policy_folder=policy_folder,
        evaluation_folder=evaluation_folder,
        observation_space=observation_space,
        action_space=space_from_json(snapshot.spec.action),
        visited=_visited(observation_space, evaluation_folder),
        episodes=episodes,
        play=lambda act, seeds: play(act, snapshot_folder, seeds, config.num_envs, "safety"),
        evidence=writer,
    )


def _visited(space: Any, evaluation_folder: Path) -> Any:
    table = read_table(evaluation_folder / TRAJECTORIES)
    return stack_columns(table, "obs", space.shape, space.dtype)


def _told_by(check: Check, hook: str, context: Context, settings: CheckConfig) -> dict[str, Any]:
    """What a check says of its claims, by their ids; nothing where it does not have this function."""
    tell: Callable[[Context, CheckConfig], dict[str, Any]] | None = getattr(check, hook, None)
    return {} if tell is None else tell(context, settings)


def _demand_distinct_ids(claims: Sequence[Claim]) -> None:
    for name, count in Counter(claim.id for claim in claims).items():
        if count > 1:
            raise ConfigError(
                f"safety: {count} claims are named {name}, so that one would hide the other; give the limit, property "
                "or sensor that it is about another name"
            )


def _with_sound_labels(claims: Sequence[Claim]) -> list[Claim]:
    """The claims in their order, without the labels of checks that what came out contradicts: what was seen false can
    be false, and who repeats another claim comes out as it does, and blocks no more than it."""
    by_id = {claim.id: claim for claim in claims}

    def is_sound(claim: Claim) -> bool:
        if claim.label is None or claim.label.kind is LabelKind.RECORD:
            return True
        if claim.label.kind is not LabelKind.REPEATS:
            return claim.verdict is not Verdict.REFUTED
        other = by_id.get(claim.label.claim or "")
        return other is not None and other.verdict is claim.verdict and (other.mandatory or not claim.mandatory)

    return [claim if is_sound(claim) else claim.model_copy(update={"label": None}) for claim in claims]


def _without_alternative(claim: Claim) -> Claim:
    """The claim; one that cannot be false says that nothing would have made it false."""
    if claim.label is None or claim.label.kind is not LabelKind.CANNOT_BE_FALSE:
        return claim
    return claim.model_copy(update={"false_if": f"nothing: {claim.label.reason}"})


def _scoped(check: Check, settings: CheckConfig, claim: Claim) -> Claim:
    """The claim with what it rests on and how far it reaches, where it does not say so itself."""
    said = scope_of(check, settings, claim)._asdict()
    return claim.model_copy(update={name: text for name, text in said.items() if not getattr(claim, name)})


def _noted(check: Check, claim: Claim, policy: Policy) -> Claim:
    """A local claim about a recurrent policy holds for what it was asked with."""
    if not check.LOCAL or not is_recurrent(policy):
        return claim
    noted = "the policy is recurrent and was asked with the memory of an episode's start, with no other"
    return claim.model_copy(update={"assumptions": [*claim.assumptions, noted]})


def _located(claim: Claim, output_folder: Path) -> Claim:
    """The claim with a replay command that works from the project's root (from the case's folder outside one)."""
    found = claim.counterexample
    if found is None or found.replay_command is None:
        return claim
    command = found.replay_command.replace(PLACEHOLDER, _place(output_folder))
    return claim.model_copy(update={"counterexample": found.model_copy(update={"replay_command": command})})


def _place(folder: Path) -> str:
    folder = folder.resolve()
    for parent in folder.parents:
        if (parent / "dvc.yaml").is_file():
            return folder.relative_to(parent).as_posix()
    return "."
