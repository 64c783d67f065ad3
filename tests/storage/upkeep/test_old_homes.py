"""Homes that earlier commits wrote are served, replayed, promoted over and rolled back to by this one."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from loomrl.cli.promotion import app
from loomrl.errors import ArtifactError, ConfigError
from loomrl.promotion import promote
from loomrl.promotion.comparison.window import read_window
from loomrl.promotion.review import review
from loomrl.promotion.signing_by_hand import EVENT, SIGNED_BY, SignedByHand, sign_by_hand
from loomrl.runs.config import PolicyConfig
from loomrl.serving.policy.roles import RoleKeeper
from loomrl.serving.policy.sources import RegistrySource
from loomrl.serving.recomputation import LogRecomputation
from loomrl.storage.audit.full_verification import verify_all
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHAMPION, PREVIOUS, Registry
from loomrl.storage.registry.files import DIGEST, SUMS_DIGEST, export_digest, local_source
from loomrl.storage.run_record import list_runs
from loomrl.system.files import sha256_file, write_sums
from tests.support.old_homes import COMMITS, unpack
from tests.support.policy_versions import register, shadow_report

SIGN = "`loomrl policy sign cartpole@1 --by NAME --reason TEXT`"


@pytest.fixture
def unsigned_home(loomrl_home: Path) -> Path:
    """From before versions were signed."""
    unpack("cc7093e", loomrl_home)
    return loomrl_home


@pytest.mark.parametrize("commit", COMMITS)
def test_an_old_home_is_served_replayed_promoted_over_and_rolled_back_to(
    commit: str, loomrl_home: Path, tmp_path: Path
) -> None:
    unpack(commit, loomrl_home)
    keeper = RoleKeeper(RegistrySource("cartpole"))
    keeper.refresh()
    if commit == "cc7093e":
        assert SIGN in keeper.refused["1"].reason
        sign_by_hand("cartpole", "1", "Ada", "it is from before versions were signed")
        keeper.refresh(retry_refused=True)
    assert keeper.current.champion is not None
    assert keeper.current.champion.version == "1"

    replayed = LogRecomputation().run("cartpole")
    assert replayed.num_equal == replayed.num_decisions > 50, (replayed.not_replayed, replayed.differences)
    with LoomDB.open() as db:
        assert verify_all(db).intact
    assert read_window("cartpole", {}, []).episodes

    registry, rules = Registry(), PolicyConfig.model_validate(list_runs("cartpole")[0].config)
    snapshot = keeper.current.champion.manifest.snapshot_digest
    version = register(tmp_path, "run-new", registry, snapshot=snapshot, returns=[500.0] * 100)
    decision = review(registry, rules, version, shadow_report(version.version, "1", num_decisions=5_000))
    assert (decision.decision, decision.champion_before) == ("promoted", "1"), decision.reasons
    with promote.exclusive("cartpole"):
        promote.apply(decision, "run-new", registry)
    assert registry.aliases("cartpole") == {CHAMPION: version.version, PREVIOUS: "1"}
    with promote.exclusive("cartpole"):
        promote.rollback("cartpole", "the new one is worse", "Ada")
    keeper.refresh()
    assert keeper.current.champion.version == "1"


def test_decisions_of_an_unsigned_version_are_replayed_with_a_note(unsigned_home: Path) -> None:
    replayed = LogRecomputation().run("cartpole")
    assert replayed.equal
    assert set(replayed.by) == {"policy", "chance"}
    assert replayed.notes == ["version 1 of cartpole is not signed"]


def test_who_signs_and_why_is_on_record(unsigned_home: Path) -> None:
    signed = CliRunner().invoke(app, ["sign", "cartpole@champion", "--by", "Ada", "--reason", "in service for a year"])
    assert signed.exit_code == 0, signed.output
    with LoomDB.open() as db:
        (event,) = db.events(EVENT)
    tag = SignedByHand.model_validate_json(Registry().require("cartpole", "1").tags[SIGNED_BY])
    assert tag.to_json() == event.data
    assert (tag.by, tag.reason, tag.version) == ("Ada", "in service for a year", "1")
    for by, reason in (("", "why"), ("Ada", " ")):
        with pytest.raises(ConfigError, match="needs the name of a person"):
            sign_by_hand("cartpole", "1", by, reason)


def test_what_is_not_what_was_registered_is_not_signed(unsigned_home: Path) -> None:
    """Neither a changed file, nor one whose digests in the registry were changed with it: the envelope knows it."""
    registry = Registry()
    folder = local_source(registry.require("cartpole", "1"))
    assert folder is not None
    graph = bytearray((folder / "policy.onnx").read_bytes())
    graph[-1] ^= 1
    (folder / "policy.onnx").write_bytes(graph)
    with pytest.raises(ArtifactError, match=r"policy\.onnx \(changed\) .* was changed after it was registered"):
        sign_by_hand("cartpole", "1", "Ada", "why")
    write_sums(folder)
    version = registry.require("cartpole", "1")
    registry.set_tag(version, SUMS_DIGEST, sha256_file(folder / "SHA256SUMS"))
    registry.set_tag(version, DIGEST, export_digest(folder))
    with pytest.raises(ArtifactError, match=r"policy\.onnx is not the file the envelope was signed for"):
        sign_by_hand("cartpole", "1", "Ada", "why")
    with LoomDB.open() as db:
        assert db.events(EVENT) == []
