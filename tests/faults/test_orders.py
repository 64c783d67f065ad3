"""The kill switch and an override under each fault alone, at the start and while the server runs: see `orders`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import __main__ as faults
from tests.faults import orders
from tests.support.preforked import Preforked


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory, template_home: Path) -> Iterator[orders.Services]:
    """Servers of the cases are copies of a process that has their clock."""
    folder = tmp_path_factory.mktemp("services")
    with orders.services(folder, template_home / "mlflow.db") as found, Preforked(variables=found.clock.environment):
        yield found


@pytest.mark.parametrize(("fault", "workers"), list(zip(orders.FAULTS, (1, 2, 1, 2, 1, 1, 1), strict=True)))
def test_a_person_can_intervene_whatever_is_broken(services: orders.Services, fault: str, workers: int) -> None:
    seconds = orders.run(services, [fault], orders.MOMENTS, workers)
    assert {moment: sorted(found) for moment, found in seconds.items()} == {
        moment: ["kill_switch", "override"] for moment in orders.MOMENTS
    }


def test_each_fault_and_pair_is_a_case_and_what_is_kept_is_in_time() -> None:
    assert len(faults.cases()) == len(set(faults.cases())) == (7 + 20) * 2 * 2
    kept = json.loads(faults.RESULTS.read_text())["results"]
    assert set(kept) == {faults.key_of(case) for case in faults.cases()}
    seconds = [second for one in kept.values() for order in one["value"].values() for second in order.values()]
    assert all(second < faults.MOST_SECONDS for second in seconds)
