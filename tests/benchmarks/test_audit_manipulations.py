"""Random manipulations of audit logs and LoomDB: all that are on record were found and named, and so is a sample."""

import json

import pytest

from benchmarks.audit_manipulations import MANIPULATIONS, RESULTS, attempt, count, original_home


def test_the_results_hold_a_thousand_and_none_was_missed() -> None:
    parts = [one["value"] for one in json.loads(RESULTS.read_text())["results"].values()]
    totals = [numbers for part in parts for numbers in part["kinds"].values()]
    assert sum(one["changed"] for one in totals) >= 1_000
    assert all(one["changed"] == one["found"] == one["named"] for one in totals)
    assert {kind for part in parts for kind in part["kinds"]} == {one.__name__ for one in MANIPULATIONS}


@pytest.mark.parametrize("seed", [1])
def test_one_of_each_kind_is_found_and_named(seed: int) -> None:
    with original_home() as home:
        found = count([attempt(home, number, seed) for number in range(len(MANIPULATIONS))])
    assert found["missed"] == []
    assert all(numbers["changed"] for kind, numbers in found["kinds"].items() if kind != "edit_record"), found
