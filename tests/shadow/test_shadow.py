"""The shadow stage end to end: real servers, real episodes, planted challengers."""

import json
import shutil
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loomrl.cli.promotion import app as policy_commands
from loomrl.errors import ConfigError, GateRefused
from loomrl.runs.config import PolicyConfig
from loomrl.runs.stages import Folders
from loomrl.safety.config import ConstraintConfig
from loomrl.serving.process import ServerProcess
from loomrl.shadow.following import losing_pair
from loomrl.shadow.shadow import run_shadow
from loomrl.shadow.traffic import drive
from loomrl.storage.registry import CHALLENGER, PolicyVersion, Registry
from loomrl.storage.run_record import RunRecord, now, run_folder, write_run
from loomrl.types import Bound, Claim, PromotionDecision, ShadowReport, Verdict
from tests.support.champions import make_champion

Versions = dict[str, PolicyVersion]


def with_shadow(config: PolicyConfig, **changes: object) -> PolicyConfig:
    return config.model_copy(update={"shadow": config.shadow.model_copy(update=changes)})


def claim(report: ShadowReport, name: str) -> Claim:
    return next(claim for claim in report.claims if claim.id == f"shadow.{name}")


def test_the_first_version_is_served_and_equals_its_artifact(
    config: PolicyConfig, registered: Versions, snapshot: Path
) -> None:
    seen: list[tuple[int, int]] = []
    report = run_shadow(config, snapshot, registered["good"], None, lambda done, wanted: seen.append((done, wanted)))
    assert report.passed, report.claims
    assert (report.bitwise_equal, report.champion_version, report.agreement) == (True, None, None)
    assert report.num_episodes >= 6
    assert report.num_decisions == seen[-1][0] >= 1_000
    assert claim(report, "bitwise_equal").verdict is Verdict.PROVED
    assert ShadowReport.model_validate(report.to_json()) == report


def test_a_similar_challenger_passes_with_its_numbers(
    config: PolicyConfig, registered: Versions, snapshot: Path
) -> None:
    limits = with_shadow(config, min_agreement=0.7, max_action_distance=0.3, max_value_drop=0.0)
    report = run_shadow(limits, snapshot, registered["similar"], registered["good"])
    assert report.passed, report.claims
    assert report.agreement is not None
    assert 0.7 < report.agreement.low < report.agreement.estimate < 1.0
    assert report.action_distance is not None
    assert report.action_distance.estimate == pytest.approx(1 - report.agreement.estimate)
    assert report.value_difference is not None
    assert report.value_difference.estimate == pytest.approx(1.0, abs=1e-5)
    assert report.bitwise_equal is None
    assert set(report.latency_seconds) == {"p50", "p99", "challenger_p50", "challenger_p99"}


def test_a_challenger_that_acts_against_the_champion_is_refused_without_any_configured_limit(
    config: PolicyConfig, registered: Versions, snapshot: Path
) -> None:
    """It would pass a gate that never meets the champion's traffic; here its own choices give it away."""
    few = {"num_episodes": 8, "num_disturbed": 8, "num_noisy": 8, "max_pairs": 8}
    followed = config.shadow.consequences.model_copy(update=few)
    config = with_shadow(config, consequences=followed)
    report = run_shadow(config, snapshot, registered["opposite"], registered["good"])
    assert not report.passed
    refuted = claim(report, "not_contrary")
    assert refuted.verdict is Verdict.REFUTED
    assert refuted.bound is not None
    assert refuted.bound.measured < refuted.bound.limit
    assert report.agreement is not None
    assert report.agreement.estimate < 0.05
    not_worse = Claim(
        id="not_worse",
        stage="promotion",
        statement="worse",
        mandatory=True,
        method="",
        verdict=Verdict.REFUTED,
        bound=Bound(kind="lower", measured=-400.0, limit=-25.0),
        counterexample=losing_pair(config.shadow.first_seed, 400.0),
    )
    keep_run(registered["opposite"].run_id, config, snapshot, report, not_worse)
    shown = [one for one in report.claims if one.counterexample is not None]
    assert {one.id.rpartition(".")[2] for one in shown} >= {"disturbed", "whole"}
    reference = f"cartpole@{report.challenger_version}"
    for one in [*shown, not_worse]:
        assert one.counterexample is not None
        again = CliRunner().invoke(policy_commands, ["replay", reference, one.id, "--json"])
        assert again.exit_code == 0, again.exception
        outcome = json.loads(again.stdout)
        assert outcome["reproduced"]
        assert outcome["finding"].startswith(f"version {report.challenger_version} beside {report.champion_version}: ")
        assert one is not_worse or one.counterexample.replay_command == f"loomrl policy replay {reference} {one.id}"
    unknown = CliRunner().invoke(policy_commands, ["replay", reference, "shadow.agreement"])
    assert isinstance(unknown.exception, ConfigError)
    assert "there are shadow.consequences" in str(unknown.exception)


def keep_run(run_id: str, config: PolicyConfig, snapshot: Path, report: ShadowReport, rule: Claim) -> None:
    """As a life cycle leaves it whose promotion this rule refused."""
    decision = PromotionDecision(
        policy="cartpole",
        version=report.challenger_version,
        champion_before=report.champion_version,
        decision="refused",
        reasons=[],
        rules=[rule],
        inputs_digest="",
    )
    record = RunRecord(
        run_id=run_id,
        policy="cartpole",
        state="refused",
        started=now(),
        config=config.model_dump(mode="json"),
        version=report.challenger_version,
        shadow=report,
        decision=decision,
    )
    write_run(record)
    shutil.copytree(snapshot, Folders(run_folder(run_id), "cartpole")["environment"])


@pytest.mark.long
def test_every_configured_limit_refuses_with_its_measured_bound(
    config: PolicyConfig, registered: Versions, snapshot: Path
) -> None:
    """Pushing right is forbidden here: the challenger would do so in about every second step, though it never acts."""
    constraint = ConstraintConfig(name="only_left", quantity="action", low=0, high=0)
    limited = with_shadow(config, min_agreement=0.9, max_action_distance=0.1, max_latency_seconds=1e-7)
    limited = limited.model_copy(update={"safety": config.safety.model_copy(update={"constraints": [constraint]})})
    report = run_shadow(limited, snapshot, registered["opposite"], registered["good"])
    assert not report.passed
    for name in ("agreement", "action_distance", "would_be_violations", "latency_p99", "latency_challenger_p99"):
        assert claim(report, name).verdict is Verdict.REFUTED
        assert claim(report, name).bound is not None
    assert report.would_be_violations is not None
    assert 0.3 < report.would_be_violations.estimate < 0.7


@pytest.mark.long
def test_a_challenger_whose_files_changed_is_refused(
    config: PolicyConfig, registered: Versions, snapshot: Path, tmp_path: Path
) -> None:
    from tests.support.policies import BALANCING, discrete_folder

    registry = Registry()
    version = registry.register("cartpole", discrete_folder(tmp_path, BALANCING, value=77.0), "tampered")
    path = Path(version.source.removeprefix("file://")) / "policy.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(GateRefused, match="was changed after it was registered"):
        run_shadow(config, snapshot, version, registered["good"])


# --- live traffic -----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_live_traffic_is_awaited_on_a_running_server(
    config: PolicyConfig, registered: Versions, snapshot: Path
) -> None:
    registry = Registry()
    make_champion(registry, registered["good"].version, challenger=registered["similar"].version)
    with ServerProcess("cartpole", rate=1e5) as server, server.client() as client:
        live = with_shadow(config, traffic="live", server=server.url, min_decisions=800, wait_seconds=60.0)
        agents = threading.Thread(target=drive, args=(client, snapshot, 0, 2, 900, None, "robot-"))
        agents.start()
        report = run_shadow(live, snapshot, registered["similar"], registered["good"])
        agents.join()
        assert (report.traffic, report.passed) == ("live", True), report.claims
        assert report.num_decisions >= 800
        registry.set_aliases("cartpole", {CHALLENGER: registered["opposite"].version})
        quiet = with_shadow(live, min_decisions=800, wait_seconds=0.5)
        report = run_shadow(quiet, snapshot, registered["opposite"], registered["good"])
        assert not report.passed
        undecided = claim(report, "min_decisions")
        assert undecided.verdict is Verdict.UNDECIDED
        assert "0 requests were mirrored within shadow.wait_seconds = 0.5" in undecided.finding
        # Episodes may drive that server too; it must hold the very versions that are compared.
        report = run_shadow(
            with_shadow(config, server=server.url), snapshot, registered["opposite"], registered["good"]
        )
        assert claim(report, "not_contrary").verdict is Verdict.REFUTED
        with pytest.raises(GateRefused, match="has challenger"):
            run_shadow(with_shadow(config, server=server.url), snapshot, registered["similar"], registered["good"])


def test_live_traffic_needs_a_server(config: PolicyConfig, registered: Versions, snapshot: Path) -> None:
    with pytest.raises(ConfigError, match=r"shadow\.server"):
        run_shadow(with_shadow(config, traffic="live"), snapshot, registered["similar"], registered["good"])
