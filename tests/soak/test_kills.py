"""The check of kills finds what it is there for."""

from collections.abc import Callable
from pathlib import Path

import pytest

from loomrl.storage.audit.log import AuditLog
from tests.soak import kills
from tests.support.live import decide, reward
from tests.support.persistent_clients import Told
from tests.support.startup_code import environment_with

# A server that answers before it has written.
ACKNOWLEDGES_FIRST = """
from loomrl.serving import audit

write_whole, waiting = audit.AuditLog._write_whole, []

def write_later(self, data):
    if data.startswith(b'{"kind":"open"'):
        return write_whole(self, data)
    waiting.append(data)
    if len(waiting) == 50:
        write_whole(self, b"".join(waiting))
        waiting.clear()

audit.AuditLog._write_whole = write_later
"""


@pytest.mark.long
@pytest.mark.usefixtures("ready_home")
def test_a_server_that_answers_before_it_has_written_is_found(tmp_path: Path) -> None:
    environment = environment_with(ACKNOWLEDGES_FIRST, tmp_path / "code")
    with pytest.raises(AssertionError, match="lost|instead of|unknown here|truncated"):
        kills.run(tmp_path, num_kills=4, num_decisions=4_000, environment=environment)


class House:
    """A log of three decisions, the first of them rewarded, the last unnamed, and what its clients were told."""

    def __init__(self) -> None:
        self.log, self.told = AuditLog("cartpole"), Told()
        for request in ("r-1", "r-2"):
            self.told.decisions[request] = self.decide(request), 1
        self.told.unnamed[self.decide(None)] = 1
        self.first = self.told.decisions["r-1"][0]
        self.reward(self.first, 1.0)
        self.told.rewards[self.first] = 1.0

    def decide(self, request: str | None) -> str:
        return decide(self.log, "a", None, [0.0], request_id=request)

    def reward(self, decision: str, value: float) -> None:
        reward(self.log, decision, "a", None, value)


@pytest.fixture
def house(loomrl_home: Path) -> House:
    return House()


def test_what_is_right_is_counted(house: House) -> None:
    house.decide("never told")
    found = kills.held_against_the_log(house.told)
    assert found == {"num_decisions": 3, "num_feedback": 1, "num_lost": 0, "num_twice": 0, "num_never_told": 1}


@pytest.mark.parametrize(
    ("happens", "message"),
    [
        (lambda house: house.told.decisions.update({"r-3": ("d", 1)}), "1 acknowledged decisions are lost.*r-3"),
        (lambda house: house.decide("r-2"), "request r-2 was decided twice"),
        (lambda house: house.told.decisions.update({"r-1": (house.first, 0)}), "was told .*, not"),
        (lambda house: house.told.decisions.update({"r-1": ("other", 1)}), "was told .*other"),
        (lambda house: house.reward(house.first, 1.0), "was rewarded twice"),
        (lambda house: house.told.unnamed.update({"d": 1}), "decision d is lost"),
        (lambda house: house.told.unnamed.update(dict.fromkeys(house.told.unnamed, 0)), "told 0, 1"),
        (lambda house: house.told.rewards.update({house.first: 2.0}), "is lost: 1.0"),
        (lambda house: house.told.rewards.update({"d": 1.0}), "the feedback on d is lost"),
    ],
)
def test_what_is_wrong_is_named(house: House, happens: Callable[[House], object], message: str) -> None:
    happens(house)
    with pytest.raises(AssertionError, match=message):
        kills.held_against_the_log(house.told)
