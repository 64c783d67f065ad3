"""The planted bugs: each still fits the sources, was judged as it is, and nearly all were noticed."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts, not a package

import mutations  # noqa: E402
from mutations import Broken, Mutation  # noqa: E402

BUGS = mutations.load()
KERNELS = [bug for bug in BUGS if mutations.is_kernel(bug, (ROOT / bug.file).read_text())]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_bug_fits_exactly_once_and_its_tests_are_there(bug: Mutation) -> None:
    source = (ROOT / bug.file).read_text()
    assert bug.applied(source) != source
    assert bug.tests
    assert [test for test in bug.tests if not (ROOT / test.partition("::")[0]).exists()] == []


def test_results_and_page_are_in_step_with_the_bugs() -> None:
    results = mutations.results()
    assert len({bug.name for bug in BUGS}) == len(BUGS)
    assert {name: result["digest"] for name, result in results.items()} == {bug.name: bug.digest for bug in BUGS}
    page = mutations.PAGE.read_text()
    assert mutations.rendered(page) == page, "run `python benchmarks/mutations.py render`"


def test_nearly_all_are_noticed() -> None:
    results = mutations.results()
    killed = sum(result["killed"] for result in results.values())
    assert len(results) >= 30
    assert killed / len(results) >= 0.95


def test_kernels_were_compiled_from_the_changed_source() -> None:
    assert len(KERNELS) >= 5
    for bug in KERNELS:
        assert Path(bug.file).stem in mutations.results()[bug.name]["compiled_anew"]


def test_a_bug_that_no_longer_fits_is_named() -> None:
    with pytest.raises(Broken, match=f"{BUGS[0].name}: its old text occurs 2 times in {BUGS[0].file}"):
        BUGS[0].applied(2 * (ROOT / BUGS[0].file).read_text())


def test_a_planted_bug_is_what_is_imported(tmp_path: Path) -> None:
    bug = KERNELS[0]
    clean, tree = tmp_path / "clean", tmp_path / "tree"
    (clean / bug.file).parent.mkdir(parents=True)
    (clean / bug.file).write_bytes((ROOT / bug.file).read_bytes())
    mutations.plant(bug, clean, tree)
    assert bug.new in (tree / bug.file).read_text()
    for package in Path(bug.file).parents[:-2]:
        (tree / package / "__init__.py").touch()
    mutations.demand_own_code(tree, bug.file)
    with pytest.raises(Broken, match="the tests would import"):
        mutations.demand_own_code(clean, bug.file)  # no package there: the installed one is found
