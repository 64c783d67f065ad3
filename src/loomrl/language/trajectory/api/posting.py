"""Groups come in: `/scored_data` and `/scored_data_list`."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from loomrl.errors import ServiceError
from loomrl.language.trajectory.api.metrics import HubMetrics
from loomrl.language.trajectory.api.posts import Posts, digest_of
from loomrl.language.trajectory.settings import HubSettings
from loomrl.language.trajectory.state.changes import Post
from loomrl.language.trajectory.state.fragments import Fragment
from loomrl.language.trajectory.state.groups import GroupIntake, parse_version
from loomrl.language.trajectory.state.packing import TrajectoryGroup
from loomrl.language.trajectory.storage.journal import HubJournal
from loomrl.language.trajectory.wire import Detail, Invalid, ScoredGroup, parse_group, parse_groups
from loomrl.system.http.asgi import Response
from loomrl.system.http.large_bodies import check_lists
from loomrl.system.http.problems import Problem
from loomrl.system.http.request import Request, beside

_MAX_KEY = 255
_MAX_LISTS = 500_000  # and objects, of a body: 20 million kept everybody waiting for half a minute, in any thread


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A group that was read: as it came, as it is kept, its content, the mean of its scores."""

    group: ScoredGroup
    kept: TrajectoryGroup
    fragment: Fragment
    mean_score: float | None


class GroupRoutes:
    """The routes that accept groups, each request once. They answer after the groups are in the database."""

    def __init__(self, settings: HubSettings, journal: HubJournal, posts: Posts, metrics: HubMetrics) -> None:
        self._journal, self._posts, self._metrics = journal, posts, metrics
        self._intake = GroupIntake(settings)

    async def add_group(self, request: Request) -> Response:
        """Take one group; the answer says whether it is queued or buffered.

        Raises:
            Invalid: for a group that the hub refuses (422).
            Problem: 503 while too many groups wait, 422 for a bad header.
        """
        self._check(request)
        prepared = await beside(len(request.body), lambda: self._read_one(request))
        digest = digest_of([prepared.fragment.deflated])
        return await self._answer_once(request, digest, lambda now: self._add_group(prepared, now))

    async def add_groups(self, request: Request) -> Response:
        """Take a list of groups. Groups the hub refuses are reported in the answer and cost the others nothing."""
        self._check(request)
        prepared, bad = await beside(len(request.body), lambda: self._read_several(request))
        digest = digest_of([*(one.fragment.deflated for one in prepared.values()), repr(sorted(bad)).encode()])
        return await self._answer_once(request, digest, lambda now: self._add_groups(prepared, bad, now))

    def _check(self, request: Request) -> None:
        self._intake.check_room(self._journal.hub)
        check_lists(request.body, len(request.body), _MAX_LISTS)
        if len(request.header(b"idempotency-key")) > _MAX_KEY:
            raise Problem(422, f"an Idempotency-Key has at most {_MAX_KEY} characters")

    async def _answer_once(self, request: Request, digest: bytes, add: Callable[[float], dict[str, Any]]) -> Response:
        """The answer; of a request that came before, the one it got then."""
        now, key = time.time(), request.header(b"idempotency-key") or None
        post = self._posts.find_repeated(request.path, digest, key, now)
        if post is not None:
            self._metrics.repeated.inc()
            await self._journal.durable()
            return Response(post.answer)
        post = Post(self._posts.next_id(), request.path, digest, key, orjson.dumps(add(now)), now)
        self._journal.hub.changes.posts.append(post)
        self._posts.store(post)
        try:
            await self._journal.durable()
        except ServiceError:
            self._posts.drop(post)
            raise
        if await request.sender_is_gone():
            self._posts.record_unanswered(post)
        return Response(post.answer)

    def _read_one(self, request: Request) -> _Prepared:
        return self._prepare(parse_group(request.body), parse_version(request.header(b"x-policy-version")))

    def _read_several(self, request: Request) -> tuple[dict[int, _Prepared], dict[int, Detail]]:
        version, lenient = parse_version(request.header(b"x-policy-version")), _is_lenient(request)
        good, bad = parse_groups(request.body, lenient)
        return {index: self._prepare(group, version) for index, group in good.items()}, bad

    def _prepare(self, group: ScoredGroup, policy_version: int | None) -> _Prepared:
        return _Prepared(group, *self._intake.prepare(group, policy_version))

    def _add_group(self, prepared: _Prepared, now: float) -> dict[str, Any]:
        hub = self._journal.hub
        environment = hub.environments.get(prepared.kept.env_id)
        try:
            self._intake.check(hub, prepared.group, prepared.kept)
        except Invalid:
            self._metrics.rejected.inc()
            if environment is not None:
                environment.record_rejected(now)
            raise
        if environment is not None:
            environment.record_accepted(prepared.mean_score, now)
        self._metrics.observe_group(prepared.kept.size, prepared.mean_score)
        return hub.add(prepared.kept, prepared.fragment, now)

    def _add_groups(self, prepared: dict[int, _Prepared], bad: dict[int, Detail], now: float) -> dict[str, Any]:
        """The wire's answer; what was rejected is told beside it. Where nothing is good, nothing was processed.

        Raises:
            Invalid: when every one of several groups is bad.
        """
        sizes: list[int] = []  # of the buffers of those that were buffered
        taken, bad = 0, dict(bad)
        self._metrics.rejected.inc(len(bad))
        for index, one in prepared.items():
            try:
                answer = self._add_group(one, now)
            except Invalid as error:
                bad[index] = error.detail
                continue
            taken += 1
            if answer["status"] == "buffered":
                sizes.append(answer["buffer_size"])
        if bad and not taken:
            raise Invalid([one for index in sorted(bad) for one in bad[index]])
        reply: dict[str, Any] = {"status": "received", "groups_processed": taken}
        if sizes:
            reply |= {"buffered": len(sizes), "last_buffer_size": sizes[-1]}
        rejected = [{"index": index, "detail": detail} for index, detail in bad.items()]
        return {**reply, "rejected": rejected} if bad else reply


def _is_lenient(request: Request) -> bool:
    """RFC 7240, section 4.4."""
    return "handling=lenient" in request.header(b"prefer").replace(" ", "").lower()
