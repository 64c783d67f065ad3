"""Which aliases of the registry a server follows: `champion` and `previous` where a signed statement says so.

Whoever writes to MLflow can move an alias, copy an older statement back, or delete one. So the newest number that this
home or LoomDB knows is remembered, and what is older is not followed. A champion from before statements were signed is
followed where LoomDB recorded the move, or this home has served it as champion.
"""

import logging
from collections.abc import Mapping

from loomrl.errors import ArtifactError, LoomRLError
from loomrl.loomdb.database import LoomDB
from loomrl.registry import CHAMPION, PREVIOUS, PolicyVersion, Registry
from loomrl.registry.statements import ChampionStatement, ServingStatement
from loomrl.serving.last_verified import LastVerified
from loomrl.types import Json

log = logging.getLogger(__name__)
_MOVES = ("promotion", "rollback")


class Statements:
    """What is known of the statements about one policy's champions."""

    def __init__(self, policy: str, kept: LastVerified | None) -> None:
        self._policy, self._kept = policy, kept
        self.number = 0 if kept is None else kept.number  # of the newest
        self.refused: dict[str, str] = {}  # version that an alias names -> why it is not followed
        self._champion: str | None = None  # followed
        self._previous: str | None = None

    def followed(self, named: Mapping[str, str], registry: Registry) -> dict[str, str]:
        """The roles to take of those that aliases name. The champion that was followed last stays where the new one
        may not be followed; a `previous` that was never champion is none.
        """
        roles, refused = dict(named), dict[str, str]()
        for role in (CHAMPION, PREVIOUS):
            version = named.get(role)
            followed = self._champion if role == CHAMPION else self._previous
            if version is None or version == followed:
                continue
            try:
                self._check(registry.require(self._policy, version), role)
                followed = version
            except ArtifactError as error:
                if version not in self.refused:
                    log.error("the alias %s is not followed: %s", role, error)
                refused[version] = str(error)
                followed = followed if role == CHAMPION else None
            if followed is None:
                del roles[role]
            else:
                roles[role] = followed
            if role == CHAMPION:
                self._champion = followed
            else:
                self._previous = followed
        self.refused = refused
        return roles

    def _check(self, version: PolicyVersion, role: str) -> None:
        name, statement = f"{version.policy}@{version.version}", ChampionStatement.of(version)
        newest = self._recorded() if statement is None or self._kept is None else None
        if statement is None:
            if self.number == 0 and self._is_from_before(version.version, newest, role):
                return
            raise ArtifactError(
                f"{name}: no signed statement says that it became champion; `loomrl policy promote` judges a version "
                f"by the rules, `loomrl policy sign {name} --by NAME --reason TEXT` vouches for the champion as it is"
            )
        if role == CHAMPION:
            if statement.number < self.number:
                raise ArtifactError(
                    f"{name}: it became champion by move {statement.number}, and move {self.number} came after it: the "
                    "alias was moved by hand; `loomrl policy rollback` goes back to an earlier version"
                )
            self.number = statement.number

    def _recorded(self) -> Json | None:
        """The newest move that LoomDB knows, where it can be asked; what its number says counts as well."""
        try:
            with LoomDB.open() as db:
                moves = db.newest_events(self._policy, _MOVES, 1)
        except LoomRLError as error:
            log.warning("%s: LoomDB cannot say which move was the newest: %s", self._policy, error)
            return None
        if not moves:
            return None
        self.number = max(self.number, int(moves[0].data.get("number", 0)))
        return moves[0].data

    def _is_from_before(self, version: str, newest: Json | None, role: str) -> bool:
        """Whether it had the role before statements were signed, by what is kept apart from MLflow."""
        if self._kept is not None and self._kept.roles.get(role) == version:
            return True
        return newest is not None and newest["version" if role == CHAMPION else "before"] == version


def signed_section(version: PolicyVersion, kept: PolicyVersion | None) -> Json | None:
    """The section `serving` that was signed for a version; None where none was. `kept` is it as it was verified last.

    Raises:
        ArtifactError: when a statement does not hold, or was replaced by an older one.
    """
    statement = ServingStatement.of(version)
    known = None if kept is None else ServingStatement.of(kept)
    if known is not None and (statement is None or statement.number < known.number):
        found = "none" if statement is None else f"number {statement.number}"
        raise ArtifactError(
            f"{version.policy}@{version.version}: how it is served was signed {known.number} times, found {found} of "
            "these statements: an older tag was put back; restore MLflow from a backup"
        )
    if statement is not None:
        return statement.serving
    champion = ChampionStatement.of(version)
    return None if champion is None else champion.serving
