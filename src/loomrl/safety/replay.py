"""Plays a claim's counterexample again and says whether the failure is still there."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from loomrl.environment.quantities import COST
from loomrl.errors import ArtifactError, ConfigError
from loomrl.evaluation.tables import read_table, steps_table
from loomrl.safety.case.counterexample import Failure, Replayed
from loomrl.safety.case.document import case_file, find_claim, read_case
from loomrl.safety.registry import find_checks
from loomrl.system.files import read_json, sha256_file
from loomrl.system.schema import Document
from loomrl.system.threads import one_thread
from loomrl.types import Claim, Evidence, SafetyCase


class CounterexampleReplay(Document):
    """The result of playing a counterexample again: `reproduced` says whether the failure is there again, `finding`
    what happens now.

    `identical` says whether every step equals the recorded one to the bit; None, as `seed`, where it is no episode.
    """

    claim: str
    seed: int | None
    reproduced: bool  # the failure is there again
    identical: bool | None  # every step equals the recorded one to the bit; None where no episode was recorded
    finding: str


@one_thread()
def replay(
    case_folder: Path, name: str, snapshot_folder: Path, policy_folder: Path, evaluation_folder: Path | None = None
) -> CounterexampleReplay:
    """Play the counterexample of claim `name`. A failure that is not there any more is no error: the result says so.

    A claim about records is asked again of the three stages' folders; that of the evaluation lies beside the policy's
    where it is not given.

    Raises:
        ConfigError: when there is no such claim, it has no counterexample, or its check cannot play one again.
        ArtifactError: when the case cannot be read, or the policy, the snapshot or the evidence is not the one it is
            about.
        EnvironmentFault: when the environment breaks its API.
    """
    case = read_case(case_folder)
    folder = case_file(case_folder).parent
    claim = find_claim(case, name)
    if claim.counterexample is None:
        raise ConfigError(f"claim {name} is {claim.verdict} and has no counterexample to replay")
    check_name = name.partition(".")[0]
    play_again = getattr(find_checks().get(check_name), "replay", None)
    if play_again is None:
        raise ConfigError(
            f"claim {name}: the check {check_name!r} offers no replay of its counterexamples in this installation; "
            "install the package it came from, or give its module a replay(failure) (docs/safety.md)"
        )
    folders = (snapshot_folder, policy_folder, evaluation_folder or policy_folder.parent / "evaluation")
    replayed: Replayed = play_again(_failure(case, claim, folder, *folders))
    return CounterexampleReplay(
        claim=claim.id,
        seed=claim.counterexample.seed,
        reproduced=replayed.reproduced,
        identical=_identical(claim.counterexample.evidence, replayed, folder),
        finding=replayed.finding,
    )


def _failure(
    case: SafetyCase, claim: Claim, folder: Path, snapshot_folder: Path, policy_folder: Path, evaluation_folder: Path
) -> Failure:
    from loomrl.algorithms.policies.loading import load_policy
    from loomrl.algorithms.policies.policy import WEIGHTS
    from loomrl.environment.snapshots.snapshot import load_snapshot
    from loomrl.environment.spaces import space_from_json

    snapshot, digest = load_snapshot(snapshot_folder), sha256_file(policy_folder / WEIGHTS)
    for what, place, found, wanted in (
        ("environment snapshot", snapshot_folder, snapshot.digest, case.snapshot_digest),
        ("policy", policy_folder, digest, case.policy_digest),
    ):
        if found != wanted:
            raise ArtifactError(
                f"the {what} in {place} is {found}, the case is about {wanted}; restore it with `dvc checkout`"
            )
    assert claim.counterexample is not None
    return Failure(
        claim=claim,
        document=read_json(_verified(folder, claim.evidence[0])),
        seed=claim.counterexample.seed,
        policy=load_policy(policy_folder),
        snapshot_folder=snapshot_folder,
        policy_folder=policy_folder,
        evaluation_folder=evaluation_folder,
        observation_space=space_from_json(snapshot.spec.observation),
        action_space=space_from_json(snapshot.spec.action),
    )


def _verified(folder: Path, evidence: Evidence) -> Path:
    path = folder / evidence.uri
    if sha256_file(path) != evidence.sha256:
        raise ArtifactError(f"{path} was changed: its SHA-256 is not the one the case cites; build the case again")
    return path


def _identical(recorded: Evidence | None, replayed: Replayed, folder: Path) -> bool | None:
    if recorded is None or replayed.episode is None:
        return None
    table, episode = read_table(_verified(folder, recorded)), replayed.episode
    if COST in table.column_names and episode.cost is None:  # others that were recorded with it told costs
        episode = replace(episode, info={COST: np.zeros(episode.length), **episode.info})
    return bool(table.equals(steps_table([episode])))
