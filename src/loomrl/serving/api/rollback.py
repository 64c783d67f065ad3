"""`POST /rollback`: a person takes the champion back, and the registry names the one before it again."""

import asyncio

from pydantic import Field, ValidationError
from typing_extensions import TypedDict

from loomrl.errors import ConfigError, ServiceError
from loomrl.serving.context import ServerContext
from loomrl.serving.decisions.requests import parse_json
from loomrl.serving.guardian.consequences import take_back
from loomrl.storage.audit.records import operation
from loomrl.system.http.asgi import Response, Scope, as_json
from loomrl.system.http.guard import OPERATOR, check_operator, holder_of
from loomrl.system.http.problems import Problem
from loomrl.system.http.routing import Route
from loomrl.system.schema import Document, first_problem


class RollbackOrder(Document):
    """Which champion is taken back, and why; the reason becomes an argument of a process, which holds no NUL."""

    version: str = Field(min_length=1, max_length=1_000)
    reason: str = Field(min_length=1, max_length=1_000, pattern=r"^[^\x00]*$")


class RolledBack(TypedDict):
    """Reply of `POST /rollback`: what was done, in words, and the champion's version now."""

    message: str
    champion: str | None


class Rollback:
    """The handler of `POST /rollback`."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def routes(self) -> list[Route]:
        """The one route of rollback, `POST /rollback`, with its handler."""
        return [
            Route(
                "POST", "/rollback", self.roll_back, OPERATOR, {200: RolledBack}, RollbackOrder, problems=(409, 503)
            )
        ]  # fmt: skip

    async def roll_back(self, scope: Scope, body: bytes, started: float) -> Response:
        """Have the registry name the champion before this one again, and follow it."""
        context = self._context
        actor = check_operator(scope, context.tokens)
        order = _parse(body)
        _check_movable(context, order.version)
        policy, holder = context.settings.policy, holder_of(scope, context.tokens)
        done = operation(policy, "rollback", actor, order.reason, version=order.version)
        await asyncio.to_thread(context.audit.append_order, [done])  # before it is done
        person = holder.name if holder else actor
        try:
            told = await asyncio.to_thread(take_back, policy, order.version, order.reason, person)
        except ConfigError as error:
            raise Problem(409, str(error)) from error
        except ServiceError as error:
            raise Problem(503, str(error)) from error
        await asyncio.to_thread(context.roles.refresh)
        champion = context.roles.current.champion
        return as_json({"message": told, "champion": None if champion is None else champion.version})


def _parse(body: bytes) -> RollbackOrder:
    try:
        return RollbackOrder.model_validate(parse_json(body))
    except ValidationError as error:
        raise Problem(400, first_problem(error)) from error


def _check_movable(context: ServerContext, version: str) -> None:
    settings, champion = context.settings, context.roles.current.champion
    if settings.folders:
        raise Problem(409, "this server serves a folder, and no alias names that: turn the kill switch on instead")
    if settings.champion is not None:
        raise Problem(409, f"this server was started with --champion {settings.champion} and follows no alias")
    if champion is None or champion.version != version:
        now = "there is none" if champion is None else f"version {champion.version} is"
        raise Problem(409, f"version {version!r} is not champion here, {now}: look again")
