"""Only what a trusted key signed, whole and as this policy's, is taken into service; the champion goes on meanwhile."""

import pickle
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from loomrl.errors import ArtifactError
from loomrl.serving.client import Refused
from loomrl.serving.policy.last_verified import path_of
from loomrl.serving.policy.model import GRAPH, MANIFEST, ServedPolicy
from loomrl.serving.policy.roles import RoleKeeper
from loomrl.serving.policy.sources import FolderSource, RegistrySource
from loomrl.serving.process import ServerProcess
from loomrl.storage.model_signature import SIGNATURE, sign
from loomrl.storage.registry import CHAMPION, Registry
from loomrl.system.files import sha256_file, write_sums
from loomrl.types import PolicyManifest
from tests.support.attacks import ATTACKS, Payload, Target
from tests.support.champions import make_champion
from tests.support.inside import wait_for
from tests.support.policies import OBSERVATIONS, discrete_folder

OBS = OBSERVATIONS[0].tolist()

# What the registry's digests do not notice, because they were rewritten to fit, the signature does.
REASONS = {
    "bit flip": "was changed after it was registered|is not the one that was registered",
    "extra file": "not in the manifest",
    "bit flip, registry rewritten": "Hash mismatch",
    "extra file, registry rewritten": "Extra files",
    "extra pickle, registry rewritten": "is of a kind that no version holds",
    "lost file, registry rewritten": "Missing files",
    "pickle payload, registry rewritten": "Hash mismatch",
    "pickle payload, wrong key": "is not among the 1 trusted keys",
    "wrong key, registry rewritten": "is not among the 1 trusted keys",
    "wrong key under our id": "not those that model.sig was made for: InvalidSignature",
    "replayed signature": "Hash mismatch",
    "replayed policy": "names the policy 'hopper': it does not pass as 'cartpole'",
    "bit flip in the signature": "not those that model.sig was made for",
    "changed statement": "not those that model.sig was made for: InvalidSignature",
    "no signature, registry rewritten": "takes signed versions only",
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory, template_home: Path) -> Iterator[Target]:
    """A version to attack, in a LOOMRL_HOME of the module's own whose champion is version 1."""
    folder = tmp_path_factory.mktemp("verified")
    shutil.copytree(template_home, folder / "home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOMRL_HOME", str(folder / "home"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        registry = Registry()
        registry.register("cartpole", discrete_folder(folder / "good"), "run-good")
        yield Target(registry, folder)


@pytest.fixture
def keeper(target: Target) -> Iterator[RoleKeeper]:
    """Follows the registry, version 1 in service; the target is put right afterwards."""
    make_champion(target.registry, "1")
    keeper = RoleKeeper(RegistrySource("cartpole"))
    keeper.refresh()
    yield keeper
    target.restore()


def name_champion(target: Target, keeper: RoleKeeper) -> None:
    make_champion(target.registry, target.version.version)
    keeper.refresh()


@pytest.mark.parametrize("kind", ATTACKS)
def test_what_was_tampered_with_is_refused_and_says_why(kind: str, target: Target, keeper: RoleKeeper) -> None:
    before = keeper.current
    target.attack(kind, np.random.default_rng(3))
    name_champion(target, keeper)
    assert keeper.current.champion is before.champion
    assert re.search(REASONS.get(kind, "."), keeper.refused[target.version.version].reason)
    assert not target.loot.sentinel.exists()


def test_the_whole_version_is_taken_into_service(target: Target, keeper: RoleKeeper) -> None:
    name_champion(target, keeper)
    assert keeper.current.champion is not None
    assert (keeper.current.champion.version, keeper.refused) == (target.version.version, {})


def test_what_was_registered_before_versions_were_signed_is_served_when_told_to(
    target: Target, keeper: RoleKeeper
) -> None:
    target.attack("no signature, registry rewritten", np.random.default_rng(3))
    lenient = RoleKeeper(RegistrySource("cartpole", require_signature=False))
    name_champion(target, lenient)
    assert lenient.current.champion is not None
    target.restore()
    target.attack("wrong key, registry rewritten", np.random.default_rng(3))
    lenient = RoleKeeper(RegistrySource("cartpole", require_signature=False))
    lenient.refresh()
    assert lenient.current.champion is None, "a signature that is there must hold"


# --- folders ----------------------------------------------------------------------------------------------------


def reason(policy: str, folder: Path, require_signature: bool = False) -> str | None:
    """Why a server of folders refuses this one."""
    keeper = RoleKeeper(FolderSource(policy, {CHAMPION: folder}, require_signature))
    keeper.refresh()
    return None if keeper.current.champion is not None else keeper.refused[str(folder)].reason


def test_a_folder_need_not_be_signed_unless_told_so(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "policy")
    assert reason("cartpole", folder) is None
    assert "has no model.sig" in (reason("cartpole", folder, require_signature=True) or "")
    sign(folder, "cartpole")
    assert reason("cartpole", folder, require_signature=True) is None


def test_a_folders_signature_must_hold_where_there_is_one(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "policy")
    sign(folder, "cartpole")
    assert "names the policy 'cartpole'" in (reason("hopper", folder) or "")
    (folder / "extra.json").write_text("{}")
    assert "Extra files" in (reason("cartpole", folder) or "")
    (folder / "extra.json").unlink()
    (folder / SIGNATURE).write_text("{}")
    assert "cannot be read as a signature" in (reason("cartpole", folder) or "")


def test_a_pickle_is_never_run_not_even_where_nothing_is_signed(loomrl_home: Path, tmp_path: Path) -> None:
    folder, sentinel = discrete_folder(tmp_path / "policy"), tmp_path / "unpickled"
    (folder / GRAPH).write_bytes(pickle.dumps(Payload(sentinel)))
    manifest = PolicyManifest.read(folder / MANIFEST)
    manifest.model_copy(update={"onnx_sha256": sha256_file(folder / GRAPH)}).write(folder / MANIFEST)
    write_sums(folder)
    with pytest.raises(ArtifactError, match="onnxruntime cannot load the graph"):
        ServedPolicy.load(folder)
    assert not sentinel.exists()
    pickle.loads((folder / GRAPH).read_bytes())
    assert sentinel.exists(), "the payload is one"


def test_a_server_told_so_takes_signed_folders_only(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "policy")
    options = {"champion_folder": folder, "require_signature": True, "refresh_seconds": 0.1}
    with ServerProcess("cartpole", wait_ready=False, **options) as server, server.client() as client:
        wait_for(lambda: bool(client.status()["refused"]))
        assert "takes signed versions only" in client.status()["refused"][0]["reason"]
        assert not client.is_ready()
        sign(folder, "cartpole")
        client.refresh("cartpole")
        client.decide("a", OBS)


# --- a registry that comes late, and one that goes --------------------------------------------------------------


@pytest.mark.long
def test_a_registry_that_answers_late_is_followed_once_it_does(target: Target) -> None:
    """The registry's database is locked when a server starts that knows no verified roles, and while it decides."""
    path_of("cartpole").unlink(missing_ok=True)  # of the tests before
    uri = f"{target.registry.tracking_uri}?timeout=0.2"  # seconds that SQLite waits for a lock
    make_champion(target.registry, "1")
    blocker = sqlite3.connect(target.registry.tracking_uri.removeprefix("sqlite:///"), isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    late = {"MLFLOW_TRACKING_URI": uri}
    server = ServerProcess("cartpole", wait_ready=False, environment=late, refresh_seconds=0.1)
    try:
        with server, server.client() as client:
            wait_for(lambda: "locked" in (client.status()["registry_error"] or ""))
            assert not client.is_ready()
            with pytest.raises(Refused, match="the registry does not say which it is"):
                client.decide("a", OBS)
            blocker.execute("ROLLBACK")
            wait_for(client.is_ready)
            blocker.execute("BEGIN EXCLUSIVE")
            wait_for(lambda: "locked" in (client.status()["registry_error"] or ""))
            assert client.decide("a", OBS).version == "1"
            blocker.execute("ROLLBACK")
            wait_for(lambda: client.status()["registry_error"] is None)
    finally:
        blocker.close()
