"""Where a version comes from: commit -> config, plug-ins -> DVC outputs -> run -> version -> alias."""

from dataclasses import dataclass

from loomrl.runs.report.document import Node, ReportEdge, ReportLineage
from loomrl.runs.stages import ORDER
from loomrl.storage.run_record import RunRecord
from loomrl.system.walks import reachable

COLUMNS = {  # heading -> kinds of node below it
    "commit": ("commit",),
    "config, plug-ins": ("config", "plugin"),
    "DVC outputs": ("snapshot", "dvc"),
    "run": ("run",),
    "version, alias": ("policy", "alias"),
}
NODE_WIDTH, NODE_HEIGHT, GAP_X, GAP_Y, HEADING = 152, 52, 44, 26, 34


def derive_lineage(record: RunRecord, snapshot_digest: str | None) -> ReportLineage:
    """Nodes and edges of one run, all from its record; an edge leads from what was there first to what came of it.

    `snapshot_digest` names the environment's node; None: the digest of the stage's output does.
    """
    nodes = [_commit(record), _config(record)]
    edges = [ReportEdge(subject=nodes[0].id, predicate="holds", object=nodes[1].id)]
    outputs = _outputs(record, snapshot_digest)
    plugins, plugin_edges = _plugins(record, outputs)
    run = Node(id=f"run:{record.run_id}", kind="run", label=record.run_id, detail=record.state)
    for index, output in enumerate(outputs):
        edges.append(ReportEdge(subject=nodes[1].id, predicate="configures", object=output.id))
        edges += [ReportEdge(subject=read.id, predicate="read by", object=output.id) for read in outputs[:index]]
        edges.append(ReportEdge(subject=output.id, predicate="recorded by", object=run.id))
    edges.append(ReportEdge(subject=nodes[1].id, predicate="configures", object=run.id))
    released, release_edges = _release(record, run, outputs)
    return ReportLineage(nodes=[*nodes, *plugins, *outputs, run, *released], edges=edges + plugin_edges + release_edges)


def _commit(record: RunRecord) -> Node:
    label = record.git_commit[:12] if record.git_commit else "no commit"
    detail = "+ uncommitted diff" if record.git_dirty else "clean"
    return Node(id=f"commit:{record.git_commit or 'none'}", kind="commit", label=label, detail=detail)


def _config(record: RunRecord) -> Node:
    count = len(record.overrides)
    detail = f"{count} override{'' if count == 1 else 's'}" if count else "as committed"
    return Node(id=f"config:{record.policy}", kind="config", label=f"{record.policy}.yaml", detail=detail)


def _outputs(record: RunRecord, snapshot_digest: str | None) -> list[Node]:
    found = []
    for stage in record.stages:
        if stage.name in ORDER and stage.digest:
            digest = snapshot_digest if stage.name == "environment" and snapshot_digest else stage.digest
            kind = "snapshot" if stage.name == "environment" else "dvc"
            found.append(
                Node(id=f"{kind}:{digest}", kind=kind, label=stage.name, detail=f"{digest[:8]} · {stage.status}")
            )
    return found


def _plugins(record: RunRecord, outputs: list[Node]) -> tuple[list[Node], list[ReportEdge]]:
    """The packages of others, and the outputs that their code made."""
    found: dict[str, Node] = {}
    edges = []
    made = {output.label: output for output in outputs}
    for stage in record.stages:
        for identity in stage.plugins:
            name, _, digest = identity.removeprefix("plugin:").partition("@")
            found[identity] = Node(id=identity, kind="plugin", label=name, detail=digest[:8])
            if stage.name in made:
                edges.append(ReportEdge(subject=identity, predicate="run by", object=made[stage.name].id))
    return list(found.values()), edges


def _release(record: RunRecord, run: Node, outputs: list[Node]) -> tuple[list[Node], list[ReportEdge]]:
    if record.version is None:
        return [], []
    name = f"{record.policy}@{record.version}"
    version = Node(id=f"policy:{name}", kind="policy", label=f"version {record.version}", detail=record.policy)
    edges = [ReportEdge(subject=run.id, predicate="registered", object=version.id)]
    edges += [ReportEdge(subject=one.id, predicate="contained in", object=version.id) for one in outputs[-1:]]
    aliases = [
        Node(id=f"alias:{record.policy}@{alias}", kind="alias", label=alias, detail="when the run ended")
        for alias in _aliases(record)
    ]
    return [version, *aliases], edges + [
        ReportEdge(subject=version.id, predicate="named", object=alias.id) for alias in aliases
    ]


def _aliases(record: RunRecord) -> list[str]:
    """Who the version is when the run has ended; a refused one gets its alias taken away again."""
    return {"promoted": ["champion"], "unchanged": ["champion"], "waiting": ["challenger"]}.get(record.state, [])


# --- layout -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """A node and where its upper left corner stands, in pixels."""

    node: Node
    x: int
    y: int


@dataclass(frozen=True)
class LineageDrawing:
    """A lineage laid out left to right, in pixels."""

    width: int
    height: int
    headings: list[tuple[int, str]]  # (x, text), one for each column
    boxes: list[Box]
    arrows: list[str]  # SVG path data


def lay_out(lineage: ReportLineage) -> LineageDrawing:
    """The drawing of a lineage: columns left to right by the kinds of its nodes; edges that others imply are left out.

    Raises:
        ValueError: for a lineage without nodes.
    """
    boxes: dict[str, Box] = {}
    headings = []
    columns = [
        (title, nodes)
        for title, kinds in COLUMNS.items()
        if (nodes := [node for node in lineage.nodes if node.kind in kinds])
    ]
    tallest = max(len(nodes) for _, nodes in columns)
    for index, (title, nodes) in enumerate(columns):
        x = 1 + index * (NODE_WIDTH + GAP_X)
        headings.append((x, title))
        top = HEADING + (tallest - len(nodes)) * (NODE_HEIGHT + GAP_Y) // 2
        for row, node in enumerate(nodes):
            boxes[node.id] = Box(node, x, top + row * (NODE_HEIGHT + GAP_Y))
    return LineageDrawing(
        width=2 + len(columns) * NODE_WIDTH + (len(columns) - 1) * GAP_X,
        height=HEADING + tallest * (NODE_HEIGHT + GAP_Y) - GAP_Y + 2,
        headings=headings,
        boxes=list(boxes.values()),
        arrows=[_arrow(boxes[one.subject], boxes[one.object]) for one in direct_edges(lineage)],
    )


def direct_edges(lineage: ReportLineage) -> list[ReportEdge]:
    """The edges that no longer path implies (transitive reduction of an acyclic graph), in their order."""
    after: dict[str, set[str]] = {}
    for edge in lineage.edges:
        after.setdefault(edge.subject, set()).add(edge.object)
    beyond = {
        node: {further for one in following for further in reachable([one], lambda step: after.get(step, ()))[1:]}
        for node, following in after.items()
    }
    return [edge for edge in lineage.edges if edge.object not in beyond[edge.subject]]


def _arrow(start: Box, end: Box) -> str:
    if start.x == end.x:
        middle = start.x + NODE_WIDTH // 2
        return f"M{middle},{start.y + NODE_HEIGHT} V{end.y - 5}"
    x1, y1 = start.x + NODE_WIDTH, start.y + NODE_HEIGHT // 2
    x2, y2 = end.x - 5, end.y + NODE_HEIGHT // 2
    bend = (x1 + x2) // 2
    return f"M{x1},{y1} C{bend},{y1} {bend},{y2} {x2},{y2}"
