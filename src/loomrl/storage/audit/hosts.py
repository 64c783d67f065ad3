"""The audit logs of all hosts that serve a policy, and which of them are not here.

Each host writes chains of its own under its `LOOMRL_HOME/audit`. Where that folder of another host is shared, or a
copy of it was fetched, `LOOMRL_AUDIT_FOLDERS` names it (several as in `PATH`), and whatever reads what happened in
production reads it, too. LoomDB, in which all hosts anchor their chains, says which there are; missing ones are named.
"""

import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

from loomrl.errors import ConfigError
from loomrl.storage.audit.segments import holds, last_record
from loomrl.storage.loomdb.records import AuditChain
from loomrl.system.home import home
from loomrl.system.names import checked_name

AUDIT_FOLDERS = "LOOMRL_AUDIT_FOLDERS"
_SHADOW = "-shadow"  # chains of what challengers would have done: see `shadow_state.shadow_folder`


def audit_roots() -> list[Path]:
    """The `audit` folder of this host, then those of the others.

    Raises:
        ConfigError: for a folder that is not there.
    """
    others = [Path(name).expanduser() for name in os.environ.get(AUDIT_FOLDERS, "").split(os.pathsep) if name]
    for folder in others:
        if not folder.is_dir():
            raise ConfigError(
                f"{AUDIT_FOLDERS} names {folder}, which is no folder; mount it, fetch it, or leave it out"
            )
    return [home() / "audit", *others]


def chains_of_all_hosts(policy: str) -> dict[str, Path]:
    """Folder of each chain of a policy by its name, "POLICY/CHAIN"; of two copies of one chain that which goes further,
    and holds the last record of the other.

    Raises:
        ConfigError: where two chains have one name, or `LOOMRL_AUDIT_FOLDERS` names a folder that is not there.
        ArtifactError: when a record of a copy was changed, from the last one of the shorter copy on.
    """
    found: dict[str, Path] = {}
    roots = [root / checked_name(policy) for root in audit_roots()]
    for folder in (one for root in roots for one in sorted(root.glob("*")) if one.is_dir()):
        name = f"{policy}/{folder.name}"
        if name not in found:
            found[name] = folder
            continue
        shorter, longer = sorted((found[name], folder), key=lambda copy: last_record(copy)[0])
        if not holds(longer, *last_record(shorter)):
            raise ConfigError(
                f"{found[name]} and {folder} are different chains of one name. If two hosts write them, each needs a "
                "name of its own: `loomrl serve --server NAME`; if one is a copy, it was changed: see "
                "`loomrl audit verify --everywhere`"
            )
        found[name] = longer
    return found


def missing_chains(found: Mapping[str, Path], known: Iterable[AuditChain], since: datetime | None = None) -> list[str]:
    """A sentence for each chain that LoomDB knows and that is not here, not up to its end, or another one: with host
    and fix.

    `found` is by `chains_of_all_hosts`, `known` by `LoomDB.audit_chains`; `since` leaves out chains whose newest head
    was anchored before. Chains of what challengers would have done do not count.

    Raises:
        ArtifactError: when a record of a chain here was changed, from the anchored one on.
    """
    missing = []
    for chain in known:
        if chain.server.endswith(_SHADOW) or chain.sequence < 0 or (since is not None and chain.anchored < since):
            continue
        host = chain.host or "another host"
        fix = f"share or fetch `LOOMRL_HOME/audit` of {host} and name that folder in {AUDIT_FOLDERS}"
        if chain.server not in found:
            missing.append(f"the log {chain.server} of {host} is not here: {fix}")
        elif (last := last_record(found[chain.server])[0]) < chain.sequence:
            there = f"{found[chain.server]} ends at record {last}, but {host} has written {chain.sequence}"
            missing.append(f"{there}: {fix}")
        elif not holds(found[chain.server], chain.sequence, chain.digest):
            missing.append(
                f"{found[chain.server]} is not the log {chain.server} of {host}: record {chain.sequence} is not the "
                f"one that was anchored; {fix}, and see `loomrl audit verify --everywhere`"
            )
    return missing
