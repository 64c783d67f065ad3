"""Whether the sender of a request still waits: servers may hand over an empty rest of the body before they know."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from loomrl.system.http.request import Request

REST = {"type": "http.request", "body": b"", "more_body": False}
GONE = {"type": "http.disconnect"}


def saying(*messages: dict[str, object]) -> Callable[[], Awaitable[dict[str, object]]]:
    """Says messages, then nothing."""
    left = list(messages)

    async def receive() -> dict[str, object]:
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    return receive


@pytest.mark.parametrize(
    ("messages", "is_gone"), [([], False), ([REST], False), ([GONE], True), ([REST, REST, GONE], True)]
)
def test_only_who_left_is_gone(messages: list[dict[str, object]], is_gone: bool) -> None:
    request = Request({}, b"", saying(*messages))
    assert asyncio.run(request.sender_is_gone()) is is_gone
