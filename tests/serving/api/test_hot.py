"""Connections that agents keep: open while they are used, whoever answers, and closed once they idle."""

from asyncio import StreamReader, StreamWriter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from loomrl.system.http.tokens import add
from tests.support.hot_connections import BODY, DECIDE, KEPT, LIVE, Clock, Story, on_a_connection, status_of
from tests.support.policies import discrete_folder


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


def test_who_was_refused_is_not_asked_to_go_on(told: Callable[[Story], None]) -> None:
    async def story(clock: Clock, reader: StreamReader, writer: StreamWriter) -> None:
        headers = b"host: 127.0.0.1\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n"
        writer.write(b"POST /decide HTTP/1.1\r\n%b\r\nno size of a chunk\r\n" % headers)
        assert await status_of(reader) == 400
        await clock.pass_by(2.0)
        assert await reader.read() == b""

    told(story)


def _request(headers: dict[str, str]) -> bytes:
    lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
    return b"POST /decide HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (lines.encode(), len(BODY), BODY)


def test_what_a_connection_showed_before_lets_nothing_else_in(
    told: Callable[[Story], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    any_agent, another = add(tmp_path / "tokens", "any", ["decide"]), add(tmp_path / "tokens", "b", ["decide"], ["b"])
    monkeypatch.setenv("LOOMRL_TOKENS_FILE", str(tmp_path / "tokens"))
    good = {"host": "127.0.0.1", "content-type": "application/json", "authorization": f"Bearer {any_agent}"}
    untyped = {name: text for name, text in good.items() if name != "content-type"}
    requests = [
        (good, 200),
        (untyped, 200),
        (good | {"authorization": f"Bearer {another}"}, 403),
        (good | {"authorization": "Bearer nobody"}, 401),
        (good | {"host": "another.example"}, 421),
        (good | {"content-type": "text/plain"}, 415),
        (untyped | {"user-agent": "Mozilla/5.0"}, 415),
        (good | {"origin": "http://another.example"}, 403),
    ]

    async def story(clock: Clock, reader: StreamReader, writer: StreamWriter) -> None:
        for pair in product(requests, requests):
            for headers, status in pair:
                writer.write(_request(headers))
                assert (headers, await status_of(reader)) == (headers, status)

    told(story)


def _timers(clock: Clock) -> int:
    return sum(not timer.cancelled() for timer in clock._scheduled)
