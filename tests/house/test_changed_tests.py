"""`make test CHANGED=1` runs the tests of what was changed, and of what imports that."""

from tests.support.changed_tests import ROOT, selected

SOURCE = ROOT / "src" / "loomrl"


def names(*changed: str) -> list[str]:
    return [str(path.relative_to(ROOT / "tests")) for path in selected({SOURCE / one for one in changed})]


def test_what_mirrors_a_changed_module_is_run_and_what_imports_it() -> None:
    found = names("statistics/clustered.py")
    assert "statistics/test_clustered.py" in found
    assert "promotion/comparison/test_returns.py" in found  # over `statistics/paired_returns`
    assert "gym/test_curriculum.py" not in found


def test_a_changed_test_is_run_alone() -> None:
    path = ROOT / "tests" / "statistics" / "test_betting.py"
    assert selected({path}) == [path]


def test_a_change_of_what_tests_share_runs_those_that_use_it() -> None:
    path = ROOT / "tests" / "support" / "jumping_clock.py"
    found = selected({path})
    names = {one.name for one in found}
    assert names == {"test_orders.py", "test_controls.py"}  # the former over `tests/faults/orders.py`


def test_nothing_is_run_where_nothing_changed() -> None:
    assert selected(set()) == []
