"""Plays again why a version was refused beside its champion, in a run or by hand."""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import ValidationError

from loomrl.errors import ConfigError
from loomrl.promotion.by_hand import BY_HAND
from loomrl.runs.config import PolicyConfig
from loomrl.runs.stages import Folders
from loomrl.safety.replay import CounterexampleReplay
from loomrl.serving.policy.model import ServedPolicy
from loomrl.shadow.replay import replay
from loomrl.storage.loomdb.database import DamagedRow, LoomDB
from loomrl.storage.loomdb.records import Event
from loomrl.storage.registry import PolicyVersion, Registry
from loomrl.storage.run_record import list_runs, read_run, run_folder
from loomrl.system.home import inside
from loomrl.system.schema import first_problem
from loomrl.types import Claim, Consequences, PromotionDecision


def replay_refusal(registry: Registry, version: PolicyVersion, name: str) -> CounterexampleReplay:
    """Play the counterexample of a claim that refused a version again: `not_worse`, or one of its shadow report.

    The newest report or decision in which the claim has one is meant, of a run on this machine or by hand; the finding
    says beside which champion that was. The snapshot is that of the run which made the version. A failure that is not
    there any more is no error: the result says so.

    Raises:
        ConfigError: when there is none, the version's run is not here, or a package the environment needs is missing.
        GateRefused: when a version has no answer to an observation.
        EnvironmentFault: when the environment breaks its API, or the episode does not repeat.
        ArtifactError: when a version's files or the snapshot were changed, or a run's record is torn.
        ServiceError: when the registry or LoomDB cannot be reached.
    """
    one, claim = _newest(version, name)
    run = read_run(version.run_id)
    served = [
        ServedPolicy.load(registry.download(each, inside("versions", each.policy, each.version)), each.version)
        for each in (version, registry.require(version.policy, one.champion))
    ]
    config, snapshot = (
        PolicyConfig.model_validate(run.config),
        Folders(run_folder(run.run_id), run.policy)["environment"],
    )
    return replay(claim, one.found or Consequences(examined=False), config, snapshot, *served)


@dataclass(frozen=True)
class _Told:
    """Claims about a version beside a champion, with what followed, and when they were made."""

    when: str  # ISO 8601, UTC
    champion: str
    claims: list[Claim]
    found: Consequences | None = None


def _newest(version: PolicyVersion, name: str) -> tuple[_Told, Claim]:
    """What was told last in which this claim about the version has a counterexample."""
    every = sorted(_all(version), key=lambda one: one.when, reverse=True)
    shown = [(one, claim) for one in every for claim in one.claims if claim.counterexample is not None]
    for one, claim in shown:
        if claim.id == name:
            return one, claim
    there_are = f"; there are {', '.join(dict.fromkeys(claim.id for _, claim in shown))}" if shown else ""
    raise ConfigError(
        f"nothing on this machine has a counterexample of {name} for {version.policy}@{version.version}{there_are}"
    )


def _all(version: PolicyVersion) -> Iterator[_Told]:
    decisions = []
    for record in list_runs(version.policy):
        report, when = record.shadow, record.finished or record.started
        if report is not None and report.challenger_version == version.version and report.champion_version is not None:
            yield _Told(when, report.champion_version, report.claims, report.consequences)
        if record.decision is not None:
            decisions.append((when, record.decision))
    with LoomDB.open() as db:
        decisions += [(event.created.isoformat(), _decision(event)) for event in db.events(BY_HAND)]
    for when, decision in decisions:
        is_about = (decision.policy, decision.version) == (version.policy, version.version)
        if is_about and decision.champion_before is not None:
            yield _Told(when, decision.champion_before, decision.rules)


def _decision(event: Event) -> PromotionDecision:
    try:
        return PromotionDecision.model_validate(event.data.get("decision"))
    except ValidationError as error:
        raise DamagedRow(
            f"an event {BY_HAND!r} in LoomDB holds no decision, it was changed: {first_problem(error, 'decision')}"
        ) from error
