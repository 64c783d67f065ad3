"""Plays a claim's counterexample again and says whether the failure is still there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loomrl.errors import ArtifactError, ConfigError
from loomrl.evaluation.evaluate import play
from loomrl.evaluation.tables import read_table, steps_table
from loomrl.files import read_json, sha256_file
from loomrl.safety.case import case_file, find_claim, read_case
from loomrl.safety.checks import action_bounds, disturbed_return, finiteness
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import violations
from loomrl.safety.counterexample import describe
from loomrl.safety.gate import act_with
from loomrl.safety.probes import Disturbance, ask, ask_outputs, not_members
from loomrl.schema import Document
from loomrl.types import Claim, Episode, Evidence, Json, SafetyCase


class Replay(Document):
    """What happened when a counterexample was played again."""

    claim: str
    seed: int | None
    reproduced: bool  # the failure is there again
    identical: bool | None  # every step equals the recorded one to the bit; None where no episode was recorded
    finding: str


@dataclass(frozen=True)
class Subject:
    """What a case is about, loaded and checked against its digests."""

    policy: Any
    snapshot_folder: Path
    observation_space: Any
    action_space: Any


def replay(case_folder: Path, name: str, snapshot_folder: Path, policy_folder: Path) -> Replay:
    """Play the counterexample of claim `name`.

    Raises:
        ConfigError: when there is no such claim, or it has no counterexample.
        ArtifactError: when the policy, the snapshot or the evidence is not the one the case is about.
    """
    case = read_case(case_folder)
    folder = case_file(case_folder).parent
    claim = find_claim(case, name)
    if claim.counterexample is None:
        raise ConfigError(f"claim {name} is {claim.verdict} and has no counterexample to replay")
    subject = _subject(case, snapshot_folder, policy_folder)
    document: Json = read_json(_verified(folder, claim.evidence[0]))
    if claim.counterexample.seed is not None:
        return _replay_episode(claim, claim.counterexample.seed, document, folder, subject)
    return _replay_observation(claim, document, subject)


def _subject(case: SafetyCase, snapshot_folder: Path, policy_folder: Path) -> Subject:
    from loomrl.algorithms.policy import WEIGHTS, load_policy
    from loomrl.environment.snapshot import load_snapshot
    from loomrl.environment.spaces import space_from_json

    snapshot, digest = load_snapshot(snapshot_folder), sha256_file(policy_folder / WEIGHTS)
    for what, folder, found, wanted in (
        ("environment snapshot", snapshot_folder, snapshot.digest, case.snapshot_digest),
        ("policy", policy_folder, digest, case.policy_digest),
    ):
        if found != wanted:
            raise ArtifactError(
                f"the {what} in {folder} is {found}, the case is about {wanted}; restore it with `dvc checkout`"
            )
    spaces = (space_from_json(snapshot.spec.observation), space_from_json(snapshot.spec.action))
    return Subject(load_policy(policy_folder), snapshot_folder, *spaces)


def _verified(folder: Path, evidence: Evidence) -> Path:
    path = folder / evidence.uri
    if sha256_file(path) != evidence.sha256:
        raise ArtifactError(f"{path} was changed: its SHA-256 is not the one the case cites; build the case again")
    return path


def _replay_episode(claim: Claim, seed: int, document: Json, folder: Path, subject: Subject) -> Replay:
    noisy = document.get("kind") == disturbed_return.NAME
    act = _disturbance(document, subject).around(subject.policy) if noisy else act_with(subject.policy)
    episode = play(act, subject.snapshot_folder, [seed], 1, "replay")[0]
    assert claim.counterexample is not None
    recorded = claim.counterexample.evidence
    identical = None
    if recorded is not None:
        identical = bool(read_table(_verified(folder, recorded)).equals(steps_table([episode])))
    if noisy:
        reproduced, finding = _lost_return(document, episode)
    else:
        constraint = ConstraintConfig.model_validate(document["constraint"])
        reproduced = bool(np.any(violations(constraint, episode)))
        finding = describe(constraint, episode) if reproduced else f"{constraint.quantity} respects its limit now"
    return Replay(claim=claim.id, seed=seed, reproduced=reproduced, identical=identical, finding=finding)


def _disturbance(document: Json, subject: Subject) -> Disturbance:
    scale = np.asarray(document["noise_scale"], dtype=np.float64).reshape(subject.observation_space.shape)
    return Disturbance(subject.observation_space, scale, int(document["key"]))


def _lost_return(document: Json, episode: Episode) -> tuple[bool, str]:
    before = float(document["returns"][document["seeds"].index(episode.seed)])
    after = episode.episode_return
    return after < before, f"noise lowers the return of seed {episode.seed} from {before:.6g} to {after:.6g}"


def _replay_observation(claim: Claim, document: Json, subject: Subject) -> Replay:
    space = subject.observation_space
    obs = np.asarray([document["examples"][0]["observation"]], dtype=space.dtype)
    if document["kind"] == action_bounds.NAME:
        action = ask(subject.policy, obs)
        reproduced = bool(not_members(subject.action_space, action)[0])
        finding = f"the action for {obs[0].tolist()} is {action[0].tolist()}"
    else:
        outputs = ask_outputs(subject.policy, obs)
        bad = sorted(name for name, values in outputs.items() if finiteness.not_finite(values)[0])
        reproduced = bool(bad)
        finding = f"for {obs[0].tolist()} these outputs are not finite: {', '.join(bad) or 'none'}"
    return Replay(claim=claim.id, seed=None, reproduced=reproduced, identical=None, finding=finding)
