"""How versions, decisions and lineage are shown to a person, and as JSON."""

import json
import sys
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from loomrl.promotion.decisions import DecisionsOf
from loomrl.promotion.lineage import PLUGINS_TAG, Descendants, Lineage
from loomrl.promotion.promote import CHAMPION_SINCE, DECISION, REASON
from loomrl.promotion.rebuild import RebuildReport
from loomrl.promotion.rules import ROLLED_BACK
from loomrl.storage import ledger
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.provenance import output_hashes
from loomrl.storage.registry import PolicyVersion, Registry
from loomrl.system.terminal import PlainConsole
from loomrl.types import Json, PromotionDecision

_STYLES = {"promoted": "green", "unchanged": "green", "waiting": "yellow", "refused": "red"}


def _console() -> Console:
    """As wide as the terminal; wide enough to keep ids whole where the output goes elsewhere."""
    return PlainConsole() if sys.stdout.isatty() else PlainConsole(width=220)


def _table(title: str | None, *columns: str) -> Table:
    """A table whose cells are folded, not cut."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def print_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def rows(registry: Registry, policy: str | None) -> list[Json]:
    """One row for each version of a policy, or of all policies, newest version first; empty where there is none.

    A row is a JSON object: policy, version, aliases, state, decision, reason, times, run and digest.

    Raises:
        ServiceError: when the registry cannot be reached.
    """
    found = []
    for name in [policy] if policy else registry.policies():
        aliases = registry.aliases(name)
        for version in reversed(registry.versions(name)):
            held = [alias for alias, holder in aliases.items() if holder == version.version]
            found.append(_row(version, held))
    return found


def _row(version: PolicyVersion, aliases: list[str]) -> Json:
    return {
        "policy": version.policy,
        "version": version.version,
        "aliases": aliases,
        "state": "rolled back" if ROLLED_BACK in version.tags else version.tags.get(DECISION, "registered"),
        "decision": version.tags.get(DECISION),
        "reason": version.tags.get(REASON),
        "champion_since": version.tags.get(CHAMPION_SINCE),
        "rolled_back": version.tags.get(ROLLED_BACK),
        "run_id": version.run_id,
        "created": version.created,
        "digest": version.digest,
    }


def print_rows(found: list[Json]) -> None:
    """Print the table of `loomrl policy list`; without any row, how to make a first version."""
    if not found:
        _console().print("no versions yet; start a life cycle with `loomrl run configs/POLICY.yaml`")
        return
    table = _table(None, "policy", "version", "aliases", "state", "created", "run", "digest")
    for row in found:
        state = row["state"]
        table.add_row(
            row["policy"],
            row["version"],
            ", ".join(row["aliases"]),
            f"[{_STYLES.get(state, 'default')}]{state}[/]",
            row["created"][:19].replace("T", " "),
            row["run_id"],
            row["digest"][:12],
        )
    _console().print(table)


def details(version: PolicyVersion, registry: Registry, db: LoomDB) -> Json:
    """Everything about one version that registry and LoomDB hold: the fields of its row, and `source`, `tags` and
    `moves`.

    Raises:
        ServiceError: when the registry or LoomDB cannot be reached.
    """
    aliases = [alias for alias, holder in registry.aliases(version.policy).items() if holder == version.version]
    moves = [move for move in ledger.moves(db, version.policy) if move["version"] == version.version]
    return {**_row(version, aliases), "source": version.source, "tags": version.tags, "moves": moves}


def print_details(found: Json) -> None:
    """Print the table of `loomrl policy show`: a line for each field of `details`."""
    table = Table(show_header=False)
    table.add_column("key", style="bold")
    table.add_column("value", overflow="fold")
    for key, value in found.items():
        if key == "aliases":
            table.add_row(key, ", ".join(value) or "none")
        elif key == "tags":
            for name, content in sorted(value.items()):
                table.add_row(name, escape(content))
        elif key == "moves":
            for move in value:
                table.add_row(move["kind"], escape(f"{move['time']} over {move['before'] or 'none'}: {move['reason']}"))
        elif value is not None:
            table.add_row(key, escape(str(value)))
    _console().print(table, highlight=False)


def print_decision(decision: PromotionDecision) -> None:
    """Print a table of a decision: every rule with its verdict and its sentence."""
    title = f"{decision.policy} version {decision.version}: {decision.decision}"
    table = _table(title, "rule", "verdict", "finding")
    for claim in decision.rules:
        verdict = claim.verdict.value if claim.mandatory else f"{claim.verdict.value} (not mandatory)"
        if claim.label is not None:  # there was nothing to examine
            verdict = f"{verdict}; {claim.label.kind.value.replace('_', ' ')}"
        table.add_row(claim.id, verdict, escape(claim.statement))
    _console().print(table, highlight=False)


def print_lineage(found: Lineage | Descendants) -> None:
    """Print a tree: backwards for a version, forwards for a node."""
    tree = _forward(found) if isinstance(found, Descendants) else _backward(found)
    _console().print(tree, highlight=False, soft_wrap=True)


def print_decisions(found: DecisionsOf) -> None:
    """Print a table with a row for each version and chain, then a line for each log that is missing."""
    title = f"decisions that came of {escape(found.origin)}"
    table = _table(title, "version", "chain", "host", "decisions", "taken over", "simulated", "first", "last")
    for version in found.versions:
        name = f"{version.policy}@{version.version}"
        for chain in version.chains:
            counts = str(chain.num_decisions), str(chain.num_taken_over), str(chain.num_simulated)
            table.add_row(name, chain.chain, escape(chain.host or ""), *counts, chain.first[:19], chain.last[:19])
        if not version.chains:
            table.add_row(name, "", "", "0", "0", "0", "", "")
    _console().print(table, highlight=False)
    for line in found.missing:
        print(f"missing: {line}")


def print_decision_id(found: Json, as_json: bool) -> None:
    """Print id, time and chain of a decision in one line, or the whole as JSON."""
    print(json.dumps(found) if as_json else f"{found['decision_id']}  {found['timestamp']}  {found['chain']}")


def _forward(found: Descendants) -> Tree:
    tree = Tree(f"[bold]{found.node}[/]")
    for edge in found.edges:
        tree.add(escape(edge))
    return tree


def _backward(found: Lineage) -> Tree:
    names = f" ({', '.join(found.aliases)})" if found.aliases else ""
    tree = Tree(f"[bold]{found.policy} version {found.version}[/]{names}  {found.digest[:12]}, {found.created[:19]}")
    if found.decision:
        tree.label = f"decision {found.decision['decision_id']} at {found.decision['timestamp']} by {tree.label}"
    run = tree.add(f"run {found.run['run_id']}  {found.run.get('state', found.run.get('missing', ''))}")
    overrides = found.run.get("overrides") or {}
    run.add(escape("config " + (", ".join(f"{key}={value}" for key, value in overrides.items()) or "as in the file")))
    changed = f" with changes {found.commit.diff_sha256[:12]}" if found.commit.diff_sha256 else ""
    run.add(f"commit {found.commit.commit or 'none: made outside git'}{changed}")
    for plugin in found.tags.get(PLUGINS_TAG, "").split():
        name, _, digest = plugin.removeprefix("plugin:").partition("@")
        run.add(escape(f"plug-in {name}  {digest[:12]}"))
    stages = run.add("DVC outputs")
    for stage, entry in found.dvc.items():
        hashes = ", ".join(f"{path} {digest}" for path, digest in output_hashes(entry).items())
        stages.add(escape(f"{stage}: {hashes or entry}"))
    tree.add(escape(_snapshot_line(found)))
    for move in found.moves:
        tree.add(escape(f"{move['kind']} at {move['time']} over version {move['before'] or 'none'}: {move['reason']}"))
    return tree


def _snapshot_line(found: Lineage) -> str:
    if found.snapshot is None:
        return f"snapshot {found.snapshot_digest or 'unknown'} (not in this LoomDB)"
    spec = found.snapshot.spec
    source = found.snapshot.source_digest[:12]
    return f"snapshot {found.snapshot.digest} of {spec.name} version {spec.version}, source {source}"


def print_rebuild(report: RebuildReport) -> None:
    """Print a table of a rebuild's artifacts: the recorded and the rebuilt digest, equal or different."""
    table = Table(title=f"{report.policy} version {report.version}, rebuilt from commit {report.commit[:12]}")
    for column in ("artifact", "recorded", "rebuilt", ""):
        table.add_column(column)
    for artifact in report.artifacts:
        verdict = "[green]equal[/]" if artifact.equal else "[red]different[/]"
        table.add_row(artifact.name, artifact.expected[:16], (artifact.found or "missing")[:16], verdict)
    _console().print(table)
    if report.left_out:
        _console().print(f"without {', '.join(report.left_out)}, which seemed to hold secrets and were not kept")
    _console().print(f"{report.seconds:.0f} s")
