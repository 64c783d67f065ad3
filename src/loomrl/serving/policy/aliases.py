"""Which aliases of the registry a server follows: `champion` and `previous` where a signed statement says so.

Whoever writes to MLflow can move an alias, copy an older statement back, delete one, or put other files under a number.
So the newest number that this home or LoomDB knows is remembered, what is older is not followed, and the files that may
be loaded are those that the statement names. A champion from before statements were signed is followed where LoomDB
recorded the move, or this home has served it as champion.
"""

import logging
import math
import time
from collections.abc import Mapping

from loomrl.errors import ArtifactError, ConfigError, LoomRLError
from loomrl.serving.policy.last_verified import LastVerified
from loomrl.storage import ledger
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHAMPION, PREVIOUS, PolicyVersion, Registry
from loomrl.storage.registry.statements import ChampionStatement, ServingStatement, if_valid
from loomrl.types import Json

log = logging.getLogger(__name__)
_WAIT_SECONDS = 5  # for LoomDB: what this home remembers counts without it
_ASK_SECONDS = 30.0  # between questions who was champion last


class ChampionStatements:
    """What is known of the statements about one policy's champions. `kept` is what this home verified last, None for
    nothing.

    `refused` names the versions that an alias names and that are not followed, and why.
    """

    def __init__(self, policy: str, kept: LastVerified | None) -> None:
        self._policy, self._kept = policy, kept
        self._newest: tuple[int, str | None] = (0, None)  # number, and the version that it is about
        if kept is not None:
            self._newest = kept.number, kept.roles.get(CHAMPION)
        self.refused: dict[str, str] = {}  # version that an alias names -> why it is not followed
        self._champion: str | None = None  # followed
        self._next_question = -math.inf  # who was champion last, time.monotonic() seconds
        self._statement: ChampionStatement | None = None  # about it
        served = {} if kept is None else kept.versions  # by a server of this home
        self._sums = {version: one.described.sums_sha256 for version, one in served.items()}  # digests of their files

    def number_of(self, version: PolicyVersion) -> int:
        """The number to keep with a version that is in service as champion: of the newest statement, where that is
        about it. One about the next champion, which is still being loaded, would refuse both after a restart.
        """
        number, champion = self._newest
        if champion == version.version:
            return number
        statement = if_valid(ChampionStatement, version)
        return 0 if statement is None else statement.number

    def followed(self, named: Mapping[str, str], registry: Registry) -> dict[str, str]:
        """Of the roles that aliases name (role -> version), those to take.

        The champion that was followed last stays where the new one may not be followed, or none is named; after a
        start, the one that was champion last by what is kept apart from MLflow. `previous` is what the champion's
        statement says. What is not taken stands in `refused`.

        Raises:
            ServiceError: when the registry cannot be reached. Without LoomDB, what this home remembers counts.
        """
        before, self.refused = self.refused, {}
        version, previous = named.get(CHAMPION), named.get(PREVIOUS)
        if version is not None and version != self._champion:
            self._try_to_follow(version, registry)
        last = self.last_champion() if self._champion is None else None
        if last not in (None, version):
            self._try_to_follow(last, registry)
        if version is None and self._champion is not None:
            self.refused[self._champion] = (
                f"no alias {CHAMPION} in the registry: {self._champion}, champion last, stays"
            )
        roles = {role: version for role, version in named.items() if role not in (CHAMPION, PREVIOUS)}
        if self._champion is not None:
            roles[CHAMPION] = self._champion
            if previous is not None and self._may_be_previous(previous):
                roles[PREVIOUS] = previous
            elif previous is not None:
                self.refused.setdefault(previous, f"no signed statement says that {previous} is what to go back to")
        for one, why in self.refused.items():
            if one not in before:
                log.error("%s: an alias is not followed: %s", self._policy, why)
        return roles

    def check_files(self, version: PolicyVersion) -> None:
        """Refuse other files under the number of a version that was followed, or served here.

        Raises:
            ArtifactError: when its list of files is another now.
        """
        if self._sums.get(version.version, version.sums_sha256) != version.sums_sha256:
            raise ArtifactError(
                f"{version.policy}@{version.version}: its files are others than those that were served here before; "
                "restore MLflow from a backup"
            )

    def _try_to_follow(self, version: str, registry: Registry) -> None:
        try:
            self._follow(registry.require(self._policy, version))
        except (ArtifactError, ConfigError) as error:
            self.refused[version] = str(error)

    def last_champion(self) -> str | None:
        """By the newest move that LoomDB or this home knows; None where neither knows one.

        LoomDB is asked again after a while only.
        """
        if time.monotonic() >= self._next_question:
            self._next_question = time.monotonic() + _ASK_SECONDS
            newest = self._recorded()
            if self._newest[0] == 0 and newest is not None:
                self._newest = 0, str(newest["version"])
        return self._newest[1]

    def _follow(self, version: PolicyVersion) -> None:
        self.check_files(version)
        statement = self._statement_of(version)
        self._check_newest(version, statement)
        newest = self._recorded()
        self._check_newest(version, statement)  # LoomDB may know of a newer one
        if statement is not None:
            self._newest = statement.number, version.version
        elif not self._is_from_before(version.version, newest):
            raise _unstated(version)
        self._champion, self._statement = version.version, statement
        self._sums[version.version] = version.sums_sha256

    def _statement_of(self, version: PolicyVersion) -> ChampionStatement | None:
        """What was signed of it; what was there when it was last verified here counts where that is gone, or older.

        Raises:
            ArtifactError: when what is there does not hold, and nothing else is known.
        """
        kept = None if self._kept is None else self._kept.versions.get(version.version)
        known = None if kept is None else if_valid(ChampionStatement, kept.described)
        if known is None:
            return ChampionStatement.of(version)
        found = if_valid(ChampionStatement, version)
        return known if found is None or found.number < known.number else found

    def _check_newest(self, version: PolicyVersion, statement: ChampionStatement | None) -> None:
        """Refuse a version that became champion by an older move than the newest that is known here."""
        number, champion = self._newest
        if statement is None:
            if number:
                raise _unstated(version)
        elif statement.number < number or (statement.number == number and champion != version.version):
            raise ArtifactError(
                f"{version.policy}@{version.version}: it became champion by move {statement.number}, and move "
                f"{number} came after it: the alias was moved by hand; `loomrl policy rollback` goes back to an "
                "earlier version"
            )

    def _recorded(self) -> Json | None:
        """The newest move that LoomDB knows, where it can be asked; what its number says counts as well."""
        try:
            with LoomDB.open(wait_seconds=_WAIT_SECONDS) as db:
                newest = ledger.newest(db, self._policy)
        except LoomRLError as error:
            log.warning("%s: LoomDB cannot say which move was the newest: %s", self._policy, error)
            return None
        if newest is not None and (number := ledger.number_of(newest)) > self._newest[0]:
            self._newest = number, str(newest["version"])
        return newest

    def _is_from_before(self, version: str, newest: Json | None) -> bool:
        """Whether it was champion before statements were signed, by what is kept apart from MLflow."""
        if newest is not None:
            return bool(newest["version"] == version)
        return self._kept is not None and self._kept.roles.get(CHAMPION) == version

    def _may_be_previous(self, version: str) -> bool:
        if self._statement is not None:
            return version == self._statement.previous
        return self._kept is not None and self._kept.roles.get(PREVIOUS) == version


def _unstated(version: PolicyVersion) -> ArtifactError:
    name = f"{version.policy}@{version.version}"
    return ArtifactError(
        f"{name}: no signed statement says that it became champion; `loomrl policy promote` judges a version by the "
        f"rules, `loomrl policy sign {name} --by NAME --reason TEXT` vouches for the champion as it is"
    )


def signed_section(version: PolicyVersion, kept: PolicyVersion | None) -> Json | None:
    """The section `serving` that was signed for a version; None where none was. `kept` is it as it was verified last:
    what was signed then counts where what is there now is older, or gone.

    Raises:
        ArtifactError: when a statement does not hold.
    """
    statement = ServingStatement.of(version)
    known = None if kept is None else ServingStatement.of(kept)
    if known is not None and (statement is None or statement.number < known.number):
        log.error(
            "%s@%s: an older statement of how it is served was put back, or the newest deleted: the one that was "
            "verified last counts", version.policy, version.version,
        )  # fmt: skip
        statement = known
    if statement is not None:
        return statement.serving
    champion = ChampionStatement.of(version)
    return None if champion is None else champion.serving
