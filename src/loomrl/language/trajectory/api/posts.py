"""Requests that come twice: one whose answer was lost is answered as it was, and its groups are not taken again.

A key names a request for as long as it is kept. Without one, equal bodies are two requests, unless the first of them
was never answered: its sender went away before, or the hub was killed. Unmodified environments send those again.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from loomrl.language.trajectory.state.changes import Post
from loomrl.system.http.problems import Problem

KEEP_KEYS_SECONDS = 24 * 3_600.0
_MAX_KEYS = 100_000


@dataclass
class Posts:
    """Answers to repeat: by key, and those of requests whose sender never received one, for `retry_seconds`. With
    `equal_once`, requests without a key whose bodies are equal are one request for that time, answered or not. `now` is
    in seconds since the epoch."""

    retry_seconds: float
    equal_once: bool = False
    _by_key: dict[str, Post] = field(default_factory=dict)
    _unanswered: dict[tuple[str, bytes], Post] = field(default_factory=dict)

    _last_id: int = -1

    def next_id(self) -> int:
        """A new id for a post: 0 at first, then one more than the largest so far."""
        self._last_id += 1
        return self._last_id

    def restore(self, posts: Iterable[Post], now: float) -> None:
        """Load stored posts after a restart. It is not known which of the last answers arrived, so those without a key
        that are younger than `retry_seconds` count as unanswered."""
        for post in posts:
            self._last_id = max(self._last_id, post.id)
            if post.key is not None:
                self._by_key[post.key] = post
            elif post.created > now - self.retry_seconds:
                self._unanswered[post.path, post.digest] = post

    def find_repeated(self, path: str, digest: bytes, key: str | None, now: float) -> Post | None:
        """The stored post that a request repeats, by its key or, without one, by path and digest; None for a new
        request. Unless `equal_once`, a request without a key is a repetition once, and new when it comes again.

        Raises:
            Problem: 422 where the key came with another body before.
        """
        if key is not None:
            post = self._by_key.get(key)
            if post is not None and (post.path, post.digest) != (path, digest):
                raise Problem(422, f"Idempotency-Key {key!r} came with another body before: make a new key for each")
            return post
        post = self._unanswered.get((path, digest))
        if not self.equal_once:
            self._unanswered.pop((path, digest), None)  # what comes after the repetition is new
        return post if post is not None and post.created > now - self.retry_seconds else None

    def store(self, post: Post) -> None:
        """Store a post's answer under its key, or under its body where equal bodies are one request; else nothing. Of
        more than 100,000 keys the oldest is forgotten."""
        if post.key is None and self.equal_once:
            self._unanswered[post.path, post.digest] = post
        if post.key is not None:
            self._by_key[post.key] = post
            if len(self._by_key) > _MAX_KEYS:
                del self._by_key[next(iter(self._by_key))]

    def drop(self, post: Post) -> None:
        """Remove an answer whose groups were not stored, so that the request can be sent again."""
        self._unanswered.pop((post.path, post.digest), None)
        if post.key is not None:
            self._by_key.pop(post.key, None)

    def clear(self) -> None:
        """Remove all remembered answers, as after a reset of the hub."""
        self._by_key, self._unanswered = {}, {}

    def record_unanswered(self, post: Post) -> None:
        """Remember an answer whose sender disconnected before it was sent: an equal body will be answered by it."""
        if post.key is None:
            self._unanswered[post.path, post.digest] = post

    def remove_expired(self, now: float) -> None:
        """Remove answers that are too old: those without a key after `retry_seconds`, those with one after a day."""
        self._unanswered = {key: one for key, one in self._unanswered.items() if one.created > now - self.retry_seconds}
        for key in [key for key, one in self._by_key.items() if one.created <= now - KEEP_KEYS_SECONDS]:
            del self._by_key[key]


def digest_of(pieces: Iterable[bytes]) -> bytes:
    """The SHA-256 digest, 32 bytes, of pieces one after the other."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()
