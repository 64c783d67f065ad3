"""Decisions are read column by column alike, whichever way they were written."""

from typing import Any

import numpy as np
import orjson
import pytest

from loomrl.storage.audit.chain import GENESIS, seal
from loomrl.storage.audit.columns import Columns, own_choices
from loomrl.storage.audit.records import DECISION, column, decisions, expand, record, shadows

OBSERVED = np.array([[0.1, 1.0], [0.2, 2.0], [0.3, 3.0], [0.4, 4.0]], np.float32)


def written(entry: dict[str, Any]) -> dict[str, Any]:
    """A record as it is read back from its line."""
    read: dict[str, Any] = orjson.loads(seal(entry, GENESIS)[0])
    return read


def one(name: str, observation: list[float], **fields: Any) -> dict[str, Any]:
    shown = {"observation": observation, "action": 1, "value": 0.5, "version": "1", "override": None}
    return written(record(DECISION, decision_id=name, role="champion", **shown) | {"agent_id": "a", **fields})


def several(**columns: Any) -> dict[str, Any]:
    shared = {
        "count": 4,
        "dtypes": {"observation": "float32", "action": "int64"},
        "version": "1",
        "role": "champion",
        "override": None,
    }
    told = {"observation": OBSERVED, "action": np.array([0, 1, 0, 1]), "value": np.arange(4.0), "agent_id": ["a"] * 4}
    return written(
        decisions(shared, {"exploration_flag": [False] * 4, **told, **columns}) | {"decision_id": "t-1", "sequence": 1}
    )


def test_columns_say_what_single_records_say() -> None:
    entries = [one("t-0", [9.0, 9.0]), several(agent_id=list("abca")), one("t-2", [8.0, 8.0])]
    singles = [single for entry in entries for single in expand(entry)]
    columns = Columns(entries)
    assert len(columns) == len(singles) == 6
    for name in ("agent_id", "observation", "action", "value", "version"):
        assert columns.of(name) == [single[name] for single in singles]
    assert columns.ids() == ["t-0", "t-1.0", "t-1.1", "t-1.2", "t-1.3", "t-2"]
    assert columns.ids() == [single["decision_id"] for single in singles]
    observations = columns.array("observation").astype(np.float32)
    assert observations.tobytes() == np.array(columns.of("observation"), np.float32).tobytes()


def test_lists_of_earlier_logs_are_read_as_arrays_are() -> None:
    lists = {"observation": [[0.1, 1.0], [0.2, 2.0], [0.3, 3.0], [0.4, 4.0]], "action": [0, 1, 0, 1]}
    now, before = several(), several(**lists, value=[0.0, 1.0, 2.0, 3.0])
    assert before["columns"]["observation"] == lists["observation"]
    assert [one["observation_digest"] for one in expand(before)] == [one["observation_digest"] for one in expand(now)]
    one_column, other = Columns([before]), Columns([now])
    for name in ("observation", "action", "value"):
        assert one_column.of(name) == other.of(name)
        dtype = other.array(name).dtype
        assert one_column.array(name).astype(dtype).tobytes() == other.array(name).tobytes()
    both = Columns([before, now]).only([False, True, True, False] * 2)
    assert both.array("observation").astype(np.float32).tolist() == OBSERVED[[1, 2, 1, 2]].tolist()


def test_chosen_ones_keep_their_place() -> None:
    columns = Columns([one("t-0", [9.0, 9.0]), several()]).only([False, True, False, False, True])
    assert columns.ids() == ["t-1.0", "t-1.3"]
    assert columns.array("observation").tolist() == OBSERVED[[0, 3]].tolist()
    assert columns.only([False, True]).ids() == ["t-1.3"]
    assert len(columns.only([False, False])) == 0


@pytest.mark.parametrize("count", [1, 2, 3, 4, 10])
def test_parts_are_all_of_it_in_order(count: int) -> None:
    columns = Columns([several(), one("t-5", [9.0, 9.0]), several()]).only([True, False] + [True] * 7)
    parts = columns.parts(count)
    assert [name for part in parts for name in part.ids()] == columns.ids()
    assert all(0 < len(part) <= count for part in parts)
    assert np.concatenate([part.array("value") for part in parts]).tolist() == columns.array("value").tolist()
    assert Columns([]).parts(count) == []


@pytest.mark.parametrize("wanted", [[True] * 6, [False, True, True, True, True, False], [True, False, True] * 2])
def test_ids_read_the_same_however_they_are_written(wanted: list[bool]) -> None:
    columns = Columns([one("t-0", [9.0, 9.0]), several(), one("t-2", [8.0, 8.0])]).only(wanted)
    for part in (columns, *columns.parts(3)):
        shared = {"count": len(part), "dtypes": {"action": "int64"}, "version": "2"}
        told = {"decision_id": part.written_ids(), "action": np.arange(len(part)), "value": np.zeros(len(part))}
        mirrored = written(shadows(shared, told))
        assert column(mirrored, "decision_id") == part.ids()
        assert [single["decision_id"] for single in expand(mirrored)] == part.ids()


def test_only_what_a_version_chose_is_its_own() -> None:
    explored = several(exploration_flag=[False, True, False, False])
    pinned = one("t-3", [9.0, 9.0], override={"reason": "a person's"})
    assert own_choices([explored, pinned, written(record("feedback"))]).ids() == ["t-1.0", "t-1.2", "t-1.3"]


def test_observations_of_different_shapes_make_no_array() -> None:
    with pytest.raises(ValueError, match="dimension"):
        Columns([one("t-0", [9.0, 9.0, 9.0]), several()]).array("observation")
