"""One look at a policy's champion: since the last one, judged, and kept in LoomDB.

The event that keeps the verdict keeps the watermark too, in one row: a look that dies before has judged nothing, and
the next one reads the same records again. Nothing is skipped; an alarm may be raised twice.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock
from pydantic import Field, ValidationError

from loomrl.errors import ConfigError
from loomrl.monitoring.gathered import LookEvidence
from loomrl.monitoring.judge import judge
from loomrl.promotion.comparison.returns import read_returns
from loomrl.promotion.comparison.window import read_window
from loomrl.promotion.envelope import EVALUATION
from loomrl.runs.config import PolicyConfig
from loomrl.storage.audit.hosts import chains_of_all_hosts, missing_chains
from loomrl.storage.loomdb.database import DamagedRow, LoomDB
from loomrl.storage.registry import CHAMPION, PolicyVersion, Registry
from loomrl.system.locks import lock_file
from loomrl.system.schema import Document, first_problem
from loomrl.types import Claim, EvaluationReport, Interval, Verdict

HEALTHY, DEGRADED, TOO_FEW, INCOMPLETE = "healthy", "degraded", "too_few", "incomplete"


class Look(Document):
    """What one look at a policy's champion found: "healthy", "degraded", "too_few", or "incomplete": nothing is broken
    in what could be read, but there are decisions whose log is not here, as `missing_logs` says.

    The counts are of the version, since the last look; `num_left_out` episodes began with another's decision, or with a
    request to explore. `since` and `until` are the sequences of the last records judged before and now, by server;
    `open_episodes` are agent and episode id of those that have not ended. The next look goes on from `until` and
    `open_episodes`. `gathered` is about this version, over all looks at it.
    """

    policy: str
    version: str
    outcome: str  # "healthy", "degraded", "too_few", "incomplete"
    num_decisions: int
    num_episodes: int
    num_left_out: int  # episodes that another began, or in which an agent asked to explore
    claims: list[Claim]
    since: dict[str, int] = Field(default_factory=dict)  # server -> sequence of the last record judged before
    until: dict[str, int] = Field(default_factory=dict)
    open_episodes: list[list[str | None]] = Field(default_factory=list)
    gathered: LookEvidence = Field(default_factory=LookEvidence)  # about this version, over all looks at it
    missing_logs: list[str] = Field(default_factory=list)  # a sentence for each, with its host and what to do

    @property
    def sentence(self) -> str:
        """One sentence for people: policy, version, outcome, and what is broken or how much was seen."""
        broken = [f"{claim.id}: {claim.finding}" for claim in self.claims if claim.verdict is Verdict.REFUTED]
        seen = f"{self.num_decisions:,} decisions in {self.num_episodes:,} episodes since the last look"
        found = "; ".join([*(broken or [seen]), *self.missing_logs])
        return f"{self.policy} version {self.version} is {self.outcome}: {found}"


@contextmanager
def looking(config: PolicyConfig) -> Iterator[Look]:
    """Judge what the champion decided since the last look; kept in LoomDB when the block ends well. One at a time per
    policy on a machine: others wait.

    Too few episodes are judged again with those to come: the watermark stays. When anything raises, nothing is kept,
    and the next look judges the same records.

    Raises:
        ConfigError: when the policy has no champion, two audit logs have one name, a folder of logs is not there, or an
            observation is sealed and its key is not here.
        ArtifactError: when the audit log or the champion's files are not what they were.
        ServiceError: when LoomDB or the registry cannot be reached, or fails.
    """
    with FileLock(lock_file(f"monitoring-{config.name}")):
        look = _look(config)
        yield look
        with LoomDB.open() as db:
            db.record_event(_kind(config.name), look.to_json())


def last_look(policy: str) -> Look | None:
    """The newest look at a policy that LoomDB holds; None where there is none.

    Raises:
        ServiceError: when LoomDB cannot be reached, or what it holds was changed so that it is no look.
    """
    with LoomDB.open() as db:
        kept = db.latest_event(_kind(policy))
    if kept is None:
        return None
    try:
        return Look.model_validate(kept.data)
    except ValidationError as error:
        raise DamagedRow(
            f"the event {_kind(policy)!r} of {kept.created.isoformat()} in LoomDB is no look, it was changed: "
            f"{first_problem(error, 'data')}; remove that row, and the next look goes on from the one before it"
        ) from error


def _look(config: PolicyConfig) -> Look:
    registry, before = Registry(), last_look(config.name)
    champion = registry.get(config.name, CHAMPION)
    if champion is None:
        raise ConfigError(f"{config.name} has no champion to look at yet; run `loomrl run configs/{config.name}.yaml`")
    since, open_before = (before.until, before.open_episodes) if before else ({}, [])
    window = read_window(config.name, since, open_before)
    own = [part for episode in window.episodes if (part := episode.part_of(champion.version)) is not None]
    num_left_out = len(window.episodes) - len(own)
    earlier = before.gathered if before and before.version == champion.version else LookEvidence()
    first = {one.key: one for one in sorted(window.episodes, key=lambda one: one.began, reverse=True)}
    taken = {key for key, one in first.items() if one.part_of(champion.version) is None}
    awaited = {one.key for one in earlier.open_episodes}
    own += [episode for episode in window.only_told if episode.key in awaited]
    claims, gathered = judge(config, own, *_evaluated(config, registry, champion), earlier, taken)
    missing = _missing_logs(config.name, champion)
    outcome = _outcome(claims, len(own), config.monitoring.min_episodes, missing)
    moved = outcome != TOO_FEW
    return Look(
        policy=config.name,
        version=champion.version,
        outcome=outcome,
        num_decisions=sum(len(episode.actions) for episode in own),
        num_episodes=len(own),
        num_left_out=num_left_out,
        claims=claims,
        since=since,
        until=window.until if moved else since,
        open_episodes=gathered.still_open(window, earlier) if moved else open_before,
        gathered=gathered if moved else earlier,
        missing_logs=missing,
    )


def _outcome(claims: list[Claim], num_episodes: int, min_episodes: int, missing: list[str]) -> str:
    if any(claim.verdict is Verdict.REFUTED for claim in claims):
        return DEGRADED
    if num_episodes < min_episodes:
        return TOO_FEW
    return INCOMPLETE if missing else HEALTHY


def _missing_logs(policy: str, champion: PolicyVersion) -> list[str]:
    """Of hosts that have served since this version became champion; of all hosts where that is not on record.

    They are read from their beginning once they are here: how far each log was read is kept for each.
    """
    with LoomDB.open() as db:
        became = (
            one.created for one in db.deployments(policy) if (one.version, one.role) == (champion.version, CHAMPION)
        )
        return missing_chains(chains_of_all_hosts(policy), db.audit_chains(policy), next(became, None))


def _evaluated(
    config: PolicyConfig, registry: Registry, champion: PolicyVersion
) -> tuple[Interval, tuple[float, float]]:
    """The mean return of the champion's evaluation, and the range of returns, known before anything was seen."""
    with tempfile.TemporaryDirectory(prefix="loomrl-monitoring-") as temporary:
        folder = registry.download(champion, Path(temporary) / "champion")
        returns = read_returns(folder).values()
        declared = None if config.promotion.comparison is None else config.promotion.comparison.return_range
        low, high = declared or (min(0.0, *returns), max(0.0, *returns))
        return EvaluationReport.read(folder / EVALUATION).mean_return, (low, high if low < high else low + 1.0)


def _kind(policy: str) -> str:
    return f"monitoring {policy}"
