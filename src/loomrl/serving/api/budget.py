"""What large bodies cost who sends them, before they are parsed.

A body of megabytes holds the event loop for as long as its parsing takes, well-formed or not, and only what is
well-formed costs decisions. So a sender, by the token that was shown, else by address, has a budget of bytes: a body is
paid for when it has come, and what was answered well is paid back. A body that could not be paid for, by the length
that its headers say, is not read. Bodies below `LARGE` are free.
"""

import time

from loomrl.serving.decisions.limits import TokenBucket, TokenBuckets
from loomrl.system.http.asgi import Scope
from loomrl.system.http.guard import holder_name
from loomrl.system.http.large_bodies import LARGE
from loomrl.system.http.problems import Problem

_PAID = "loomrl.paid"  # in a scope: the bytes that were paid for it
_MAX_SENDERS = 10_000  # budgets kept; the longest unused one goes first


class Budget:
    """How many bytes of large bodies each sender may have parsed without a good answer. It is that of one process, and
    used in that process's event loop alone.
    """

    def __init__(self, bytes_per_second: float, max_body_bytes: int) -> None:
        self._buckets = TokenBuckets(bytes_per_second, max(bytes_per_second, float(max_body_bytes)), _MAX_SENDERS)

    def check(self, scope: Scope, num_bytes: int) -> None:
        """Refuse a body that is to come, of so many bytes, where it could not be paid for.

        Raises:
            Problem: 429 with Retry-After.
        """
        if num_bytes >= LARGE:
            self._affordable(scope, num_bytes)

    def pay(self, scope: Scope, num_bytes: int) -> None:
        """Take the bytes of a body from its sender's budget.

        Raises:
            Problem: 429 with Retry-After where there are not so many left.
        """
        if num_bytes >= LARGE and _PAID not in scope:
            self._affordable(scope, num_bytes).tokens -= num_bytes
            scope[_PAID] = num_bytes

    def _affordable(self, scope: Scope, num_bytes: int) -> TokenBucket:
        now = time.monotonic()
        bucket = self._buckets.named(_sender(scope), now)
        if bucket.fill(now) < num_bytes:
            wait = bucket.wait_seconds(num_bytes)
            raise Problem(
                429,
                f"too many large bodies that were refused: {bucket.rate:g} bytes of them a second are read; try again "
                f"in {wait:.3f} s, or send less than {LARGE} bytes in one request",
                {"Retry-After": str(max(1, round(wait + 0.5)))},
            )
        return bucket

    def pay_back(self, scope: Scope) -> None:
        """Return to the sender's budget the bytes that `pay` took for this request, because its body was well-formed.

        Nothing happens where nothing was paid, and a budget never exceeds its burst.
        """
        num_bytes = scope.pop(_PAID, 0)
        if num_bytes:
            bucket = self._buckets.named(_sender(scope), time.monotonic())
            bucket.tokens = min(bucket.burst, bucket.tokens + num_bytes)


def _sender(scope: Scope) -> str:
    if holder := holder_name(scope):
        return f"token {holder}"
    client = scope.get("client")
    return "" if client is None else str(client[0])
