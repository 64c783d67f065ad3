"""Watch a challenger on a running policy server: beside the champion, never acting.

With no champion yet there is nothing to stand beside: the challenger's actions are served to simulated agents and
compared with the artifact's own, bit for bit.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from loomrl.errors import ConfigError, GateRefused
from loomrl.runs.config import PolicyConfig
from loomrl.serving.client import PolicyClient, Refused
from loomrl.serving.policy.model import ServedPolicy
from loomrl.serving.process import ServerProcess
from loomrl.shadow.claims import judge, passes
from loomrl.shadow.comparison import ShadowComparison, compare
from loomrl.shadow.consequences import examine
from loomrl.shadow.following import with_command
from loomrl.shadow.pairs import PairReader, Pairs, heads, states
from loomrl.shadow.traffic import Driven, drive
from loomrl.storage.registry import PolicyVersion, Registry
from loomrl.system.home import inside
from loomrl.types import Consequences, ShadowReport

OnProgress = Callable[[int, int], None]  # decisions so far, decisions wanted
_POLL_SECONDS = 1.0
_DRAIN_SECONDS = 30.0


def run_shadow(
    config: PolicyConfig,
    snapshot_folder: Path,
    challenger: PolicyVersion,
    champion: PolicyVersion | None,
    on_progress: OnProgress | None = None,
) -> ShadowReport:
    """Drive or await traffic, then judge the challenger by the server's own audit records.

    The registry's alias `challenger` must name `challenger` where `shadow.server` is a running server. Where live
    traffic does not bring enough decisions in time, the report is made all the same, with undecided claims.
    `on_progress` is told the decisions so far and those that are wanted.

    Raises:
        ConfigError: for live traffic without a server, or when a package the environment needs is missing.
        GateRefused: when the server does not take the challenger into service, with its reason; when what agents were
            told is not what the audit log records; when a version has no answer to an observation of the examined
            episodes.
        ServiceError: when the server cannot be reached or started, or the registry cannot be reached.
        ArtifactError: when a version's files or the snapshot are not what was registered.
        EnvironmentFault: when the environment breaks its API, or does not repeat an episode.
    """
    if config.shadow.traffic == "live" and champion is not None:
        return _live(config, snapshot_folder, challenger, champion, on_progress or _silent)
    with _server(config, challenger, champion) as client:
        return _episodes(config, snapshot_folder, client, challenger, champion, on_progress or _silent)


def _silent(done: int, wanted: int) -> None:
    """Nobody listens."""


@contextlib.contextmanager
def _server(config: PolicyConfig, challenger: PolicyVersion, champion: PolicyVersion | None) -> Iterator[PolicyClient]:
    """The configured server, following the aliases; or one of our own, its versions pinned.

    Without a champion it is always one of our own: on a running server the challenger must not act.
    """
    if config.shadow.server is not None and champion is not None:
        with PolicyClient(config.shadow.server) as client:
            _require_roles(client, challenger, champion)
            yield client
        return
    acting, beside = (challenger, None) if champion is None else (champion, challenger.version)
    rate = config.shadow.max_decisions_per_second_per_agent
    unasked = "share=0"  # what is compared are the policies' own choices
    server = ServerProcess(config.name, rate=rate, champion=acting.version, challenger=beside, explore=unasked)
    with server, server.client() as client:
        if champion is not None:
            _require_roles(client, challenger, champion)
        yield client


def _require_roles(client: PolicyClient, challenger: PolicyVersion, champion: PolicyVersion) -> None:
    """The server must hold both versions now, not just soon."""
    with contextlib.suppress(Refused):  # a version it refuses is named below, with the reason
        client.refresh(challenger.policy)
    status = client.status()
    for role, wanted in (("champion", champion), ("challenger", challenger)):
        held = status["roles"][role]
        if held is None or held["version"] != wanted.version:
            reasons = "; ".join(f"version {entry['version']}: {entry['reason']}" for entry in status["refused"])
            raise GateRefused(
                f"the server at {client.url} has {role} {held and held['version']}, not {wanted.version}"
                f"{': ' + reasons if reasons else ': set the alias in the registry it follows'}"
            )


def _episodes(
    config: PolicyConfig,
    snapshot_folder: Path,
    client: PolicyClient,
    challenger: PolicyVersion,
    champion: PolicyVersion | None,
    on_progress: OnProgress,
) -> ShadowReport:
    shadow, artifact = config.shadow, _artifact(challenger)
    start = heads(client)
    driven = drive(
        client,
        snapshot_folder,
        shadow.first_seed,
        shadow.num_episodes,
        shadow.min_decisions,
        lambda done: on_progress(done, shadow.min_decisions),
    )
    dropped = _drain(client)
    reader = PairReader(client, challenger, champion, driven.agent_prefix, start)
    reader.read()
    pairs = reader.pairs(artifact.dtype.name)
    shortfall = (
        f"{driven.num_decisions} decisions in {driven.num_episodes} episodes, {dropped} mirrored requests dropped"
    )
    comparison = compare(pairs, artifact, config.safety.constraints, shadow.confidence, champion is not None, shortfall)
    if champion is None:
        _check_received(driven, pairs)
    followed = examine(config, snapshot_folder, artifact, _artifact(champion) if champion else None)
    return _report(config, challenger, champion, "episodes", comparison, followed)


def _check_received(driven: Driven, pairs: Pairs) -> None:
    """What agents were told is what is on record: else the audit log is not the truth about the traffic."""
    if driven.num_decisions != pairs.num_decisions:
        raise GateRefused(f"agents got {driven.num_decisions} decisions, the audit log has {pairs.num_decisions}")
    told, observed = np.asarray(driven.actions), np.asarray(driven.observations, dtype=pairs.observation.dtype)
    if not np.array_equal(told, pairs.acted) or not np.array_equal(observed, pairs.observation):
        raise GateRefused("what agents were told is not what the audit log records")


def _live(
    config: PolicyConfig,
    snapshot_folder: Path,
    challenger: PolicyVersion,
    champion: PolicyVersion,
    on_progress: OnProgress,
) -> ShadowReport:
    """Wait until enough real requests were mirrored, or until the time is up: then the claims stay undecided.

    What follows from real decisions is not known; what follows in episodes of the snapshot is examined.
    """
    shadow = config.shadow
    if shadow.server is None:
        raise ConfigError("shadow.traffic: live needs shadow.server, the URL of the policy server that has the traffic")
    artifact = _artifact(challenger)
    deadline = time.monotonic() + shadow.wait_seconds
    with PolicyClient(shadow.server) as client:
        _require_roles(client, challenger, champion)
        reader = PairReader(client, challenger, champion)
        while reader.read() < shadow.min_decisions and time.monotonic() < deadline:
            on_progress(len(reader), shadow.min_decisions)
            time.sleep(min(_POLL_SECONDS, shadow.wait_seconds / 10))
    shortfall = f"{len(reader)} requests were mirrored within shadow.wait_seconds = {shadow.wait_seconds:g}"
    pairs = reader.pairs(artifact.dtype.name)
    comparison = compare(pairs, artifact, config.safety.constraints, shadow.confidence, True, shortfall)
    followed = examine(config, snapshot_folder, artifact, _artifact(champion))
    return _report(config, challenger, champion, "live", comparison, followed)


def _artifact(version: PolicyVersion) -> ServedPolicy:
    """The registered version itself, loaded apart from the server."""
    folder = Registry().download(version, inside("versions", version.policy, version.version))
    return ServedPolicy.load(folder, version.version)


def _drain(client: PolicyClient) -> int:
    """Wait until the server has decided all mirrored requests; returns how many it dropped."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while any(state["shadow"]["num_pending"] for state in states(client)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return sum(int(state["shadow"]["num_dropped"]) for state in states(client))


def _report(
    config: PolicyConfig,
    challenger: PolicyVersion,
    champion: PolicyVersion | None,
    traffic: str,
    comparison: ShadowComparison,
    consequences: Consequences,
) -> ShadowReport:
    claims = [
        with_command(claim, config.name, challenger.version) for claim in judge(config.shadow, comparison, consequences)
    ]
    measured = {name: value for name, value in vars(comparison).items() if name in ShadowReport.model_fields}
    return ShadowReport(
        policy=config.name,
        challenger_version=challenger.version,
        champion_version=champion.version if champion else None,
        traffic=traffic,
        challenger_errors=comparison.num_errors,
        claims=claims,
        passed=passes(claims),
        consequences=consequences,
        **measured,
    )
