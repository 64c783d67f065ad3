"""How soon what fails is started again."""

from loomrl.system.lifetime import pause_seconds


def test_a_pause_doubles_with_each_failure_and_never_fails_itself() -> None:
    assert [pause_seconds(count, first=0.5, longest=3.0) for count in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 3.0]
    assert pause_seconds(100_000, first=0.5, longest=3.0) == 3.0
