"""Connections that agents keep: open while they are used, whoever answers, and closed once they idle."""

from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from pathlib import Path

import pytest
from hot_connections import DECIDE, KEPT, LIVE, Clock, Story, on_a_connection, status_of
from policies import discrete_folder


@pytest.fixture
def told(loomrl_home: Path, tmp_path: Path) -> Callable[[Story], None]:
    """Runs what one client does on a connection to a server."""
    return lambda story: on_a_connection(story, discrete_folder(tmp_path / "champion"))


async def _ask(reader: StreamReader, writer: StreamWriter, request: bytes) -> None:
    writer.write(request)
    assert await status_of(reader) == 200


def test_a_connection_is_kept_from_its_last_answer_on(told: Callable[[Story], None]) -> None:
    async def story(clock: Clock, reader: StreamReader, writer: StreamWriter) -> None:
        for request in (DECIDE, DECIDE, LIVE, DECIDE, LIVE, LIVE, DECIDE):
            await _ask(reader, writer, request)
            await clock.pass_by(0.8 * KEPT)
            assert not reader.at_eof()
        await _ask(reader, writer, DECIDE)
        await clock.pass_by(1.1 * KEPT)
        assert await reader.read() == b""

    told(story)


def test_who_sends_slowly_is_waited_for(told: Callable[[Story], None]) -> None:
    async def story(clock: Clock, reader: StreamReader, writer: StreamWriter) -> None:
        await _ask(reader, writer, DECIDE)
        for part in (DECIDE[:10], DECIDE[10:-5]):
            writer.write(part)
            await clock.pass_by(0.0)
            await clock.pass_by(3 * KEPT)
        await _ask(reader, writer, DECIDE[-5:])

    told(story)


def test_answers_to_what_was_sent_at_once_keep_their_order_and_the_connection(told: Callable[[Story], None]) -> None:
    async def story(clock: Clock, reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(DECIDE + DECIDE + LIVE + DECIDE)
        assert [await status_of(reader) for _ in range(4)] == [200] * 4
        await clock.pass_by(0.8 * KEPT)
        await _ask(reader, writer, LIVE)
        await clock.pass_by(1.1 * KEPT)
        assert await reader.read() == b""

    told(story)


def test_a_connection_that_is_lost_leaves_no_timer(told: Callable[[Story], None]) -> None:
    async def story(clock: Clock, reader: StreamReader, writer: StreamWriter) -> None:
        await _ask(reader, writer, DECIDE)
        assert _timers(clock) == 1
        writer.close()
        await clock.pass_by(0.0)
        assert _timers(clock) == 0

    told(story)


def _timers(clock: Clock) -> int:
    return sum(not timer.cancelled() for timer in clock._scheduled)
