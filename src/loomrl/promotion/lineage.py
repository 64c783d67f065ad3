"""Where a version came from, and where a snapshot, run or version went."""

from pathlib import Path

from pydantic import Field

from loomrl.errors import ConfigError
from loomrl.storage import ledger
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.loomdb.records import LineageEdge
from loomrl.storage.registry import PolicyVersion, Registry
from loomrl.storage.run_record import RECORD, RunRecord, list_runs, read_run, run_folder
from loomrl.system.files import sha256_file
from loomrl.system.schema import Document
from loomrl.types import EnvironmentSnapshot, Json

SNAPSHOT_TAG = "loomrl.snapshot_digest"
PLUGINS_TAG = "loomrl.plugins"  # plugin:NAME@SHA256 of each package of others it was made with, separated by spaces


class Commit(Document):
    """The code a run started from; `commit` is None where it was made outside git.

    Where it was `dirty`, `diff` is the file with what differed, relative to LOOMRL_HOME; None where that was not kept.
    """

    commit: str | None
    dirty: bool
    diff: str | None = None  # file with what differed, relative to LOOMRL_HOME
    diff_sha256: str | None = None


class Lineage(Document):
    """A version's way from its environment into production.

    `run` and `config` are the run's record and effective config, as far as they are on this machine: `missing` in `run`
    says where not. `dvc` holds each stage's entry in dvc.lock, `moves` when the version became champion and over whom,
    `edges` LoomDB's, as "SUBJECT PREDICATE OBJECT". `snapshot` is None where LoomDB does not hold it, `decision` the
    audit record that the question began with, if it did.
    """

    policy: str
    version: str
    digest: str
    created: str
    aliases: list[str]
    tags: dict[str, str]
    run: Json  # id, state, times, MLflow run, decision; `missing` where the record is not on this machine
    config: Json  # the effective config; empty where the run is missing
    commit: Commit
    dvc: dict[str, Json]  # stage -> its entry in dvc.lock: command, dependencies, parameters and outputs with hashes
    snapshot: EnvironmentSnapshot | None
    snapshot_digest: str | None
    moves: list[Json]  # when it became champion, and over whom
    edges: list[str]
    decision: Json | None = None  # the audit record the question began with


class Descendants(Document):
    """What came of a node: the nodes `found`, each once, nearest first, and the `edges` that lead there, as "SUBJECT
    PREDICATE OBJECT"."""

    node: str
    found: list[str] = Field(description="nodes reached, each once, nearest first")
    edges: list[str]


def parse_version(text: str) -> tuple[str, str]:
    """`cartpole@champion` -> ("cartpole", "champion"); without `@` the champion.

    Raises:
        ConfigError: where no policy is named.
    """
    policy, _, version = text.partition("@")
    if not policy:
        raise ConfigError(f"{text!r}: expected POLICY, POLICY@VERSION or POLICY@ALIAS")
    return policy, version or "champion"


def trace(version: PolicyVersion, registry: Registry, db: LoomDB) -> Lineage:
    """The lineage of a version: run, code, config, snapshot, evidence, signatures and moves.

    What is not on this machine, such as the run's record, is left empty.

    Raises:
        ServiceError: when the registry or LoomDB cannot be reached.
        ArtifactError: when a run's record is torn.
    """
    record = find_run(version)
    digest = version.tags.get(SNAPSHOT_TAG)
    aliases = registry.aliases(version.policy)
    edges = db.edges(ledger.node(version.policy, version.version))
    moves = [move for move in ledger.moves(db, version.policy) if move["version"] == version.version]
    return Lineage(
        policy=version.policy,
        version=version.version,
        digest=version.digest,
        created=version.created,
        aliases=[alias for alias, holder in aliases.items() if holder == version.version],
        tags=version.tags,
        run=_summary(version, record),
        config=record.config if record else {},
        commit=_commit(version, record),
        dvc={stage.name: stage.lock for stage in record.stages if stage.lock} if record else _outputs_only(version),
        snapshot=db.get_snapshot(digest) if digest else None,
        snapshot_digest=digest,
        moves=moves,
        edges=[f"{edge.subject} {edge.predicate} {edge.object}" for edge in edges],
    )


def trace_decision(decision_id: str, registry: Registry, db: LoomDB) -> Lineage:
    """From one record of the audit log to everything the version that decided came from.

    Raises:
        ConfigError: when no log here holds the decision, or no version decided it (a person set the action), or its
            version is not registered.
        ServiceError: when the registry or LoomDB cannot be reached.
        ArtifactError: when a run's record is torn.
    """
    from loomrl.storage.audit.history import require_decision

    entry = require_decision(decision_id)
    if entry.get("version") is None:
        raise ConfigError(f"decision {decision_id} was taken by no version: {entry.get('override')}")
    version = registry.require(entry["policy"], str(entry["version"]))
    return trace(version, registry, db).model_copy(update={"decision": entry})


def descendants(node: str, db: LoomDB) -> Descendants:
    """Everything that came of a snapshot, plug-in, run or version, by those of LoomDB's edges that say what was made.

    `snapshot:` and `plugin:` nodes are objects of the edges of what was made with them, runs are subjects of what they
    made. That a run promoted, refused or went back to a version is no making of it.

    Raises:
        ConfigError: when nothing came of the node.
        ServiceError: when LoomDB cannot be reached.
    """
    found: list[str] = []
    edges: list[str] = []
    frontier = [node]
    while frontier:
        current = frontier.pop(0)
        for edge in db.edges(current):
            after = _came_of(current, edge)
            if after is None:
                continue
            edges.append(f"{edge.subject} {edge.predicate} {edge.object}")
            if after not in found and after != node:
                found.append(after)
                frontier.append(after)
    if not edges:
        raise ConfigError(f"LoomDB knows nothing that came of {node!r}; nodes are written kind:id, snapshot:DIGEST")
    return Descendants(node=node, found=found, edges=list(dict.fromkeys(edges)))


# Edges that say what was made, and at which end it stands.
_MAKING = {"produced": "object", "used": "subject", "trained_in": "subject", "made_with": "subject"}


def _came_of(node: str, edge: LineageEdge) -> str | None:
    """The edge's other end where that was made by, in or with `node`."""
    made = {"subject": edge.subject, "object": edge.object}.get(_MAKING.get(edge.predicate, ""))
    return None if made == node else made


def find_run(version: PolicyVersion) -> RunRecord | None:
    """The record of the run that made a version; None where it lies on another machine.

    Raises:
        ArtifactError: when a run's record is torn.
    """
    if (run_folder(version.run_id) / RECORD).is_file():
        return read_run(version.run_id)
    return next((one for one in list_runs(version.policy) if one.version == version.version), None)


def _summary(version: PolicyVersion, record: RunRecord | None) -> Json:
    if record is None:
        return {"run_id": version.run_id, "missing": f"no record of run {version.run_id} on this machine"}
    kept = ("run_id", "state", "started", "finished", "overrides", "mlflow_run_id", "prefect_flow_run_id", "message")
    return {name: value for name, value in record.to_json().items() if name in kept}


def _commit(version: PolicyVersion, record: RunRecord | None) -> Commit:
    if record is None:
        commit = version.tags.get("git.commit", "none")
        return Commit(commit=None if commit == "none" else commit, dirty=version.tags.get("git.dirty") == "true")
    patch = run_folder(record.run_id) / "diff.patch"
    kept = patch.is_file()
    return Commit(
        commit=record.git_commit,
        dirty=record.git_dirty,
        diff=Path(*patch.parts[-3:]).as_posix() if kept else None,  # runs/RUN_ID/diff.patch
        diff_sha256=sha256_file(patch) if kept else None,
    )


def _outputs_only(version: PolicyVersion) -> dict[str, Json]:
    """What the registry's tags say of DVC's outputs where the run's record is not here."""
    found = {key.removeprefix("dvc."): value for key, value in version.tags.items() if key.startswith("dvc.")}
    return {stage: {"outs": [{"md5": digest}]} for stage, digest in found.items()}
