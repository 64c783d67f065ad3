"""Everything the audit log says about a challenger beside a champion: live where both decided, else by the log."""

import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

from loomrl.errors import ConfigError
from loomrl.promotion.comparison.config import ComparisonConfig
from loomrl.promotion.comparison.live import Known, LiveComparison, compare_live
from loomrl.promotion.comparison.off_policy.config import OffPolicyConfig
from loomrl.promotion.comparison.off_policy.report import OffPolicyReport, estimate
from loomrl.promotion.comparison.returns import read_returns
from loomrl.promotion.comparison.window import Window, WindowEpisode, read_window
from loomrl.runs.config import PolicyConfig
from loomrl.serving.policy.model import MANIFEST, ServedPolicy
from loomrl.storage.audit.hosts import chains_of_all_hosts, missing_chains
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import PolicyVersion, Registry
from loomrl.system.home import inside
from loomrl.system.schema import Document
from loomrl.types import PolicyManifest

_CLOCKS = timedelta(minutes=1)  # by which those of hosts may differ


class VersionComparison(Document):
    """The comparison of two versions: live, and by the champion's log."""

    policy: str
    champion_version: str
    challenger_version: str
    live: LiveComparison
    off_policy: OffPolicyReport

    @property
    def path(self) -> Path:
        """The file that keeps this comparison, in `LOOMRL_HOME/comparisons`; it need not exist."""
        name = f"{self.policy}-{self.champion_version}-{self.challenger_version}.json"
        return inside("comparisons", name)

    @property
    def sentence(self) -> str:
        """One sentence for people: for each quantity, whether the challenger is better, worse or undecided."""
        found = [f"{one.quantity} {one.finding}" for one in self.live.differences]
        return f"{self.policy} version {self.challenger_version} beside {self.champion_version}: {', '.join(found)}"


def compare_versions(
    config: PolicyConfig, registry: Registry, champion: PolicyVersion, challenger: PolicyVersion, on: str | None = None
) -> VersionComparison:
    """Read the policy's audit logs and compare, as `promotion.comparison` and `promotion.off_policy` say.

    `on` is the only quantity to compare live: `reward`, `cost` or `limits.NAME`; None takes all.

    Raises:
        ConfigError: for one version named twice, a quantity there is not, a log that contradicts a declared range, or a
            sealed observation whose key is not here.
        ArtifactError: when a log or a version's files are not what they were.
        ServiceError: when LoomDB or the registry cannot be reached.
    """
    if champion.version == challenger.version:
        raise ConfigError(f"both are version {champion.version} of {config.name}; name two that differ")
    window = read_window(config.name, {}, [])
    folders = [registry.download(one, inside("versions", one.policy, one.version)) for one in (champion, challenger)]
    versions = champion.version, challenger.version
    return VersionComparison(
        policy=config.name,
        champion_version=champion.version,
        challenger_version=challenger.version,
        live=live_comparison(config, window, versions, folders[0], on),
        off_policy=off_policy_estimate(config, window.episodes, versions, (folders[0], folders[1])),
    )


def live_comparison(
    config: PolicyConfig,
    window: Window,
    versions: tuple[str, str],
    champion_folder: Path,
    on: str | None = None,
) -> LiveComparison:
    """Champion and challenger, `versions`, side by side. Nothing is claimed where a host's log is missing: the
    comparison then says in `refused` which.

    `on` is the only quantity to compare, None takes all. `champion_folder` holds the champion's files.

    Raises:
        ConfigError: for a quantity there is not; names those there are.
        ArtifactError: when a file of the champion is missing or torn.
        ServiceError: when LoomDB, which knows the logs there are, cannot be reached.
    """
    settings = config.promotion.comparison or ComparisonConfig()
    span = settings.return_range or evaluated_range(champion_folder)
    steps = PolicyManifest.read(champion_folder / MANIFEST).environment.max_episode_steps
    episodes = [*window.episodes, *window.without_answer]
    known = Known(now=time.time(), max_episode_steps=steps)
    found = compare_live(episodes, versions, config.safety.constraints, settings, span, on, known)
    found = found.model_copy(update={"logs": sorted(window.until)})
    missing = _missing(config.name, _experiments(episodes))
    return found.without_claims(missing) if missing else found


def _experiments(episodes: Iterable[WindowEpisode]) -> list[str]:
    return [one.time for episode in episodes for one in episode.assignments.values()]


def _missing(policy: str, begun: Sequence[str]) -> str:
    """Which logs are not here, of hosts that served since the first of these times; empty where none is missing."""
    since = datetime.fromisoformat(min(begun)) - _CLOCKS if begun else None
    with LoomDB.open() as db:
        return "; ".join(missing_chains(chains_of_all_hosts(policy), db.audit_chains(policy), since))


def off_policy_estimate(
    config: PolicyConfig, episodes: Sequence[WindowEpisode], versions: tuple[str, str], folders: tuple[Path, Path]
) -> OffPolicyReport:
    """The estimate of the challenger's return from the champion's logged episodes; where the log allows none, the
    report says why in `refused`. Where a host's log is missing, nothing is estimated, and `refused` says which.

    `versions` and `folders` are those of champion and challenger, in this order.

    Raises:
        ConfigError: when the log contradicts `reward_range`, `max_steps` or `min_propensity`.
        ArtifactError: when a folder's files are not those that its manifest names.
        ServiceError: when LoomDB, which knows the logs there are, cannot be reached.
    """
    champion, challenger = (
        ServedPolicy.load(folder, version) for folder, version in zip(folders, versions, strict=True)
    )
    found = estimate(config.name, episodes, champion, challenger, config.promotion.off_policy or OffPolicyConfig())
    acted = [one.began for one in episodes if champion.version in one.deciders]
    missing = _missing(config.name, [*acted, *_experiments(episodes)])
    return found.without_claims(missing) if missing else found


def evaluated_range(folder: Path) -> tuple[float, float]:
    """The least and the greatest of 0 and the returns of the episodes a version was evaluated in; (0, 1) where all are
    0.

    They are known before anything was decided live.

    Raises:
        ArtifactError: when the episodes are missing, or a return is not finite.
    """
    returns = read_returns(folder).values()
    low, high = min(0.0, *returns), max(0.0, *returns)
    return (low, high) if low < high else (0.0, 1.0)
