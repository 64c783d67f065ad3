"""The kill switch and an override under each fault alone, at the start and while the server runs: see `orders`."""

from collections.abc import Iterator

import pytest

from tests.faults import orders


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[orders.Services]:
    with orders.services(tmp_path_factory.mktemp("services")) as found:
        yield found


@pytest.mark.parametrize("moment", orders.MOMENTS)
@pytest.mark.parametrize("fault", orders.FAULTS)
def test_a_person_can_intervene_whatever_is_broken(services: orders.Services, fault: str, moment: str) -> None:
    orders.run(services, [fault], moment, workers=1 + (moment == "running"))


def test_each_pair_is_a_case() -> None:
    assert len(orders.cases()) == len(set(orders.cases())) == 7 + 20
