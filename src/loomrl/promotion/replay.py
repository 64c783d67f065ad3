"""Plays again why a version was refused beside its champion, from the run that tried it."""

from loomrl.errors import ConfigError
from loomrl.runs.config import PolicyConfig
from loomrl.runs.stages import Folders
from loomrl.safety.replay import CounterexampleReplay
from loomrl.serving.policy.model import ServedPolicy
from loomrl.shadow.replay import replay
from loomrl.storage.registry import PolicyVersion, Registry
from loomrl.storage.run_record import RunRecord, list_runs, run_folder
from loomrl.system.home import inside
from loomrl.types import Claim, Consequences


def replay_refusal(registry: Registry, version: PolicyVersion, name: str) -> CounterexampleReplay:
    """Play the counterexample of a claim that refused a version again: `not_worse`, or one of its shadow report.

    The newest run on this machine in which the claim has one is meant. A failure that is not there any more is no
    error: the result says so.

    Raises:
        ConfigError: when there is no such run, or a package that the environment needs is missing.
        GateRefused: when a version has no answer to an observation.
        EnvironmentFault: when the environment breaks its API, or the episode does not repeat.
        ArtifactError: when a version's files or the snapshot were changed.
        ServiceError: when the registry cannot be reached.
    """
    record, claim, beside = _refused(version, name)
    champion = registry.require(version.policy, beside)
    served = [
        ServedPolicy.load(registry.download(one, inside("versions", one.policy, one.version)), one.version)
        for one in (version, champion)
    ]
    found = record.shadow.consequences if record.shadow is not None else None
    snapshot = Folders(run_folder(record.run_id), record.policy)["environment"]
    config = PolicyConfig.model_validate(record.config)
    return replay(claim, found or Consequences(examined=False), config, snapshot, *served)


def _refused(version: PolicyVersion, name: str) -> tuple[RunRecord, Claim, str]:
    """The newest run in which a claim about this version has a counterexample, and beside which version."""
    known: list[str] = []
    for record in list_runs(version.policy):
        report, decision = record.shadow, record.decision
        told: list[tuple[str | None, list[Claim]]] = []
        if report is not None and report.challenger_version == version.version:
            told.append((report.champion_version, report.claims))
        if decision is not None and decision.version == version.version:
            told.append((decision.champion_before, decision.rules))
        for beside, claims in told:
            shown = {claim.id: claim for claim in claims if claim.counterexample is not None}
            if beside is not None and name in shown:
                return record, shown[name], beside
            known += shown
    there_are = f"; there are {', '.join(dict.fromkeys(known))}" if known else ""
    raise ConfigError(
        f"no run on this machine has a counterexample of {name} for {version.policy}@{version.version}{there_are}"
    )
