"""From a config, commit, snapshot, run or version forward to the decisions that came of it, over all hosts' logs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
from packaging.utils import canonicalize_name
from pydantic import ValidationError

from loomrl.errors import ArtifactError, ConfigError
from loomrl.promotion.lineage import PLUGINS_TAG, SNAPSHOT_TAG, find_run, parse_version
from loomrl.runs.config import PolicyConfig, load_config
from loomrl.storage.audit.columns import count_of, version_of
from loomrl.storage.audit.history import DECISION_MARKS
from loomrl.storage.audit.hosts import chains_of_all_hosts, missing_chains
from loomrl.storage.audit.records import DECISIONS, SIMULATED, column, is_taken_over, row_ids
from loomrl.storage.audit.segments import complete_lines, segments
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import PolicyVersion, Registry
from loomrl.storage.run_record import RunRecord
from loomrl.system.files import canonical_json, sha256
from loomrl.system.schema import Document
from loomrl.types import Json

_SHORTEST = 7  # characters of a commit or digest that name it


class ChainDecisions(Document):
    """What one chain of the audit log, "POLICY/CHAIN", holds of one version's decisions.

    In `num_taken_over` of them a person or a fallback decided in the version's place; the shadow stage's simulated
    agents asked for `num_simulated`. `first` and `last` are ISO 8601 times, in UTC. `host` wrote the chain; None where
    that was not kept.
    """

    chain: str  # "POLICY/CHAIN"
    host: str | None  # that wrote it; None where that was not kept
    num_decisions: int
    num_taken_over: int  # of them: a person or a fallback decided in the version's place
    num_simulated: int  # of them: asked for by the shadow stage's simulated agents
    first: str  # ISO 8601, UTC
    last: str


class VersionDecisions(Document):
    """The decisions of one version, over all hosts, and of each chain.

    In `num_taken_over` of them a person or a fallback decided in its place; the shadow stage's simulated agents asked
    for `num_simulated`. `first` and `last` are ISO 8601 times, in UTC; None without any decision. `config_sha256` is
    None where the run's record is not on this machine.
    """

    policy: str
    version: str
    run_id: str
    config_sha256: str | None  # of the run's effective config; None where the run's record is not on this machine
    num_decisions: int
    num_taken_over: int
    num_simulated: int
    first: str | None
    last: str | None
    chains: list[ChainDecisions]


class DecisionsOf(Document):
    """The decisions that versions of one origin have made. `missing` names, a sentence each, the logs that are not
    here."""

    origin: str
    versions: list[VersionDecisions]
    missing: list[str]  # logs that LoomDB knows and that are not here


def versions_of(origin: str, registry: Registry) -> list[PolicyVersion]:
    """The versions that came of an origin, at least one.

    Origins: `POLICY[@VERSION]`, `run:ID`, `commit:SHA`, `snapshot:DIGEST`, `plugin:PACKAGE[@SHA256]`,
    `config:FILE|SHA256`. A run may be named by its MLflow run, too; commits and digests by their first seven characters
    or more.

    Raises:
        ConfigError: for an origin of another kind, or one that no version came of.
        ServiceError: when the registry cannot be reached.
    """
    kind, colon, name = origin.partition(":")
    if not colon:
        return [registry.require(*parse_version(origin))]
    if kind == "policy":
        return [registry.require(*parse_version(name))]
    fits = _matcher(kind, name, origin)
    all_versions = (version for policy in registry.policies() for version in registry.versions(policy))
    if not (found := [version for version in all_versions if fits(version, find_run(version))]):
        raise ConfigError(f"no version came of {origin!r}; `loomrl policy list` names versions and runs")
    return found


def decisions_of(origin: str, registry: Registry, db: LoomDB) -> DecisionsOf:
    """How many decisions came of an origin, when, by which version and on which host.

    Raises:
        ConfigError: for an origin of another kind or one that no version came of; when two logs have one name, or a
            folder of logs is not there.
        ArtifactError: when a record is damaged.
        ServiceError: when the registry or LoomDB cannot be reached.
    """
    found, missing = [], []
    for policy, versions in _by_policy(versions_of(origin, registry)).items():
        chains, known = chains_of_all_hosts(policy), db.audit_chains(policy)
        missing += missing_chains(chains, known)
        hosts = {chain.server: chain.host for chain in known}
        counts: dict[str, dict[str, _Count]] = {version: {} for version in versions}
        for chain, entry in _records(chains, set(versions)):
            counts[version_of(entry)].setdefault(chain, _Count()).add(entry)
        found += [_summary(version, counts[name], hosts) for name, version in versions.items()]
    return DecisionsOf(origin=origin, versions=found, missing=missing)


def each_decision(origin: str, registry: Registry, after: str | None = None) -> Iterator[Json]:
    """Every decision that came of an origin, chain by chain, oldest first, one at a time in memory.

    Each is a JSON object with `decision_id`, `policy`, `version`, `chain` and `timestamp`. `after` is a decision's id:
    those behind it.

    Raises:
        ConfigError: where `after` is none of them, and as `versions_of` does; when two logs have one name, or a folder
            of logs is not there.
        ArtifactError: when a record is damaged.
        ServiceError: when the registry cannot be reached.
    """
    behind = after
    for policy, versions in _by_policy(versions_of(origin, registry)).items():
        for chain, entry in _records(chains_of_all_hosts(policy), set(versions)):
            whole = entry["decision_id"]
            ids = row_ids(whole, 0, count_of(entry)) if entry["kind"] == DECISIONS else [whole]
            if behind is not None:
                if behind not in ids:
                    continue
                ids = ids[ids.index(behind) + 1 :]
                behind = None
            told = {"policy": policy, "version": version_of(entry), "chain": chain, "timestamp": entry["timestamp"]}
            yield from ({"decision_id": name, **told} for name in ids)
    if behind is not None:
        raise ConfigError(f"--after {after!r}: no such decision came of {origin!r}")


class _Count:
    """Of one version in one chain."""

    def __init__(self) -> None:
        self.num_decisions, self.num_taken_over, self.num_simulated, self.first, self.last = 0, 0, 0, "", ""

    def add(self, entry: Json) -> None:
        count = count_of(entry)
        self.num_decisions += count
        self.num_taken_over += count * is_taken_over(entry.get("shared", entry))
        self.num_simulated += sum(agent.startswith(SIMULATED) for agent in column(entry, "agent_id"))
        self.first = min(self.first or entry["timestamp"], entry["timestamp"])
        self.last = max(self.last, entry["timestamp"])


def _summary(version: PolicyVersion, counts: dict[str, _Count], hosts: dict[str, str | None]) -> VersionDecisions:
    chains = [ChainDecisions(chain=name, host=hosts.get(name), **vars(count)) for name, count in counts.items()]
    return VersionDecisions(
        policy=version.policy,
        version=version.version,
        run_id=version.run_id,
        config_sha256=config_sha256(find_run(version)) or None,
        num_decisions=sum(chain.num_decisions for chain in chains),
        num_taken_over=sum(chain.num_taken_over for chain in chains),
        num_simulated=sum(chain.num_simulated for chain in chains),
        first=min((chain.first for chain in chains), default=None),
        last=max((chain.last for chain in chains), default=None),
        chains=chains,
    )


def _records(chains: dict[str, Path], versions: set[str]) -> Iterator[tuple[str, Json]]:
    """Records of decisions of these versions with their chains, from live and compacted segments alike."""
    for name, folder in chains.items():
        for path in segments(folder):
            for number, line in enumerate(complete_lines(path), start=1):
                if line.startswith(DECISION_MARKS):
                    entry = _parsed(line, path, number)
                    if version_of(entry) in versions:
                        yield name, entry


def _parsed(line: bytes, path: Path, number: int) -> Json:
    try:
        found: Json = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ArtifactError(f"{path}:{number} is damaged; see `loomrl audit verify`") from error
    return found


def _by_policy(versions: list[PolicyVersion]) -> dict[str, dict[str, PolicyVersion]]:
    found: dict[str, dict[str, PolicyVersion]] = {}
    for version in versions:
        found.setdefault(version.policy, {})[version.version] = version
    return found


def _matcher(kind: str, name: str, origin: str) -> Callable[[PolicyVersion, RunRecord | None], bool]:
    if kind in ("commit", "snapshot") and len(name) < _SHORTEST:
        raise ConfigError(f"{origin!r}: name it by {_SHORTEST} characters or more")
    match kind:
        case "run":
            return lambda version, run: name in (version.run_id, None if run is None else run.mlflow_run_id)
        case "commit":
            return lambda version, run: _commit(version, run).startswith(name)
        case "snapshot":
            return lambda version, _: version.tags.get(SNAPSHOT_TAG, "").startswith(name)
        case "plugin":
            return lambda version, _: any(
                _is_plugin(node, origin) for node in version.tags.get(PLUGINS_TAG, "").split()
            )
        case "config":
            if Path(name).is_file():
                config = load_config(Path(name))
                return lambda _, run: run is not None and _config(run) == config
            if len(name) < _SHORTEST:
                raise ConfigError(f"{origin!r}: no such file, and no digest of {_SHORTEST} characters or more")
            return lambda _, run: config_sha256(run).startswith(name)
    raise ConfigError(f"{origin!r}: expected POLICY[@VERSION], run:, commit:, snapshot:, plugin: or config:")


def _is_plugin(node: str, origin: str) -> bool:
    """Whether plugin:NAME@SHA256 is what an origin names, with a digest's beginning or with none, by whichever of the
    names that pip takes for one package."""
    (known, whole), (name, beginning) = (text.partition("@")[::2] for text in (node, origin))
    return canonicalize_name(known) == canonicalize_name(name) and whole.startswith(beginning)


def config_sha256(run: RunRecord | None) -> str:
    """The SHA-256 of a run's effective config, in hex digits; empty where the run's record is not on this machine."""
    return "" if run is None else sha256(canonical_json(run.config))


def _config(run: RunRecord) -> PolicyConfig | None:
    """A run's effective config, with the defaults of settings that came later; None where it is none any more."""
    try:
        return PolicyConfig.model_validate_json(canonical_json(run.config))
    except ValidationError:
        return None


def _commit(version: PolicyVersion, run: RunRecord | None) -> str:
    return (run.git_commit if run is not None else version.tags.get("git.commit")) or ""
