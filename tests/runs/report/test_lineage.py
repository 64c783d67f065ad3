"""The lineage graph of a run."""

from itertools import combinations

from loomrl.runs.report.document import Node, ReportEdge, ReportLineage
from loomrl.runs.report.lineage import NODE_HEIGHT, NODE_WIDTH, derive_lineage, direct_edges, lay_out


def test_goes_from_commit_to_alias(make_run) -> None:
    lineage = derive_lineage(make_run(), "a" * 64)
    direct = [(edge.subject.split(":")[0], edge.object.split(":")[0]) for edge in direct_edges(lineage)]
    assert direct == [
        ("commit", "config"),
        ("config", "snapshot"),
        ("snapshot", "dvc"),
        ("dvc", "dvc"),
        ("dvc", "dvc"),
        ("dvc", "dvc"),
        ("dvc", "run"),
        ("run", "policy"),
        ("policy", "alias"),
    ]
    assert "policy:cartpole@3" in [node.id for node in lineage.nodes]
    assert f"snapshot:{'a' * 64}" in [node.id for node in lineage.nodes]
    known = {node.id for node in lineage.nodes}
    assert {edge.subject for edge in lineage.edges} | {edge.object for edge in lineage.edges} <= known


def test_refused_version_has_no_alias(make_run) -> None:
    lineage = derive_lineage(make_run(state="refused"), None)
    assert [node.kind for node in lineage.nodes][-1] == "policy"


def test_run_without_stages_still_has_its_commit_and_config(make_run) -> None:
    lineage = derive_lineage(make_run(stages=[], version=None, git_commit=None), None)
    assert [node.kind for node in lineage.nodes] == ["commit", "config", "run"]
    assert lineage.nodes[0].label == "no commit"


def test_boxes_do_not_overlap_and_lie_inside(make_run) -> None:
    drawing = lay_out(derive_lineage(make_run(), "a" * 64))
    for box in drawing.boxes:
        assert 0 <= box.x <= drawing.width - NODE_WIDTH
        assert 0 <= box.y <= drawing.height - NODE_HEIGHT
    for one, other in combinations(drawing.boxes, 2):
        assert abs(one.x - other.x) >= NODE_WIDTH or abs(one.y - other.y) >= NODE_HEIGHT


def test_implied_edges_are_not_drawn() -> None:
    nodes = [Node(id=name, kind="dvc", label=name) for name in "abc"]
    edges = [
        ReportEdge(subject=one, predicate="read by", object=other)
        for one, other in (("a", "b"), ("b", "c"), ("a", "c"))
    ]
    drawn = direct_edges(ReportLineage(nodes=nodes, edges=edges))
    assert [(edge.subject, edge.object) for edge in drawn] == [("a", "b"), ("b", "c")]
