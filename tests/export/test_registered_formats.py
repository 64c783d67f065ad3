"""Torch's formats on the whole way: exported, registered, signed, downloaded, served, and gone back from."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from loomrl.algorithms.policies.loading import load_policy
from loomrl.errors import ArtifactError
from loomrl.export import formats
from loomrl.export.export import export_policy
from loomrl.promotion import promote
from loomrl.promotion.envelope import RunFacts, envelope_tags
from loomrl.promotion.lineage import trace
from loomrl.promotion.package import build_package
from loomrl.runs.config import PolicyConfig
from loomrl.serving.policy.roles import RoleKeeper
from loomrl.serving.policy.sources import RegistrySource
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.model_signature import verify
from loomrl.storage.registry import CHAMPION, PolicyVersion, Registry
from loomrl.system.files import sha256_file, write_sums
from loomrl.types import TORCH_FILES, PolicyManifest, TorchFormat
from tests.support.champions import promotion
from tests.support.trained import Policy


def register(config: PolicyConfig, policy: Policy, root: Path, *wanted: str) -> PolicyVersion:
    """Export with further formats, package, sign and register, as the flow's stages do."""
    asking = config.model_copy(update={"export": config.export.model_copy(update={"formats": wanted})})
    for stage in ("safety", "evaluation"):
        shutil.copytree(policy.root / stage, root / stage)
        write_sums(root / stage)
    export_policy(asking, policy.environment, policy.training, root / "evaluation", root / "safety", root / "export")
    write_sums(root / "export")
    facts = RunFacts(policy="cartpole", run_id=f"run-{root.name}", created="2026-11-20T00:00:00+00:00", previous=None)
    package = build_package(root, root / "package", facts)
    return Registry().register("cartpole", package, facts.run_id, envelope_tags(package))


def serve(version: PolicyVersion, keeper: RoleKeeper, before: str | None) -> None:
    """Promote a version, and have a server follow."""
    promote.apply(promotion(version.version, before), version.run_id, Registry())
    keeper.refresh()


def served(keeper: RoleKeeper) -> str | None:
    return keeper.current.champion and keeper.current.champion.version


def test_a_version_with_torchs_formats_is_registered_served_and_gone_back_from(
    config: PolicyConfig, admitted: Policy, ready_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = register(config, admitted, tmp_path / "plain")
    version = register(config, admitted, tmp_path / "more", *TORCH_FILES)
    folder = Registry().download(version, tmp_path / "download")
    verify(folder, "cartpole")
    stated = PolicyManifest.read(folder / "manifest.json").formats
    assert stated == {one: {"file": file, "sha256": sha256_file(folder / file)} for one, file in TORCH_FILES.items()}
    for one in TORCH_FILES:
        assert_acts_as(admitted, folder, one)
    nothing_reads_torchs_files(monkeypatch)
    keeper = RoleKeeper(RegistrySource("cartpole"))
    serve(plain, keeper, None)
    assert (served(keeper), keeper.refused) == (plain.version, {})
    serve(version, keeper, plain.version)
    assert (served(keeper), keeper.refused) == (version.version, {})
    with LoomDB.open() as db:
        assert trace(version, Registry(), db).aliases == [CHAMPION]
    promote.rollback("cartpole", "test", "Ada")
    keeper.refresh()
    assert Registry().aliases("cartpole")[CHAMPION] == served(keeper) == plain.version


def assert_acts_as(policy: Policy, folder: Path, one: TorchFormat) -> None:
    outputs = list(PolicyManifest.read(folder / "manifest.json").outputs)
    program = formats.read((folder / TORCH_FILES[one]).read_bytes(), one, outputs)
    observations = np.random.default_rng(1).normal(size=(100, 4)).astype(np.float32)
    np.testing.assert_array_equal(program.outputs(observations)["action"], load_policy(policy.training)(observations))


def nothing_reads_torchs_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a server reads one of torch's files")

    for module, name in ((torch, "load"), (torch.jit, "load"), (torch.export, "load")):
        monkeypatch.setattr(module, name, refuse)


def test_a_torch_file_that_the_manifest_does_not_list_is_not_registered(
    config: PolicyConfig, admitted: Policy, ready_home: Path, tmp_path: Path
) -> None:
    register(config, admitted, tmp_path / "plain")
    package = tmp_path / "plain" / "package"
    (package / "policy.pt2").write_bytes(b"PK")
    with (package / "manifest.json").open("ab") as manifest:
        manifest.write(b"\n")  # another version
    write_sums(package)
    with pytest.raises(ArtifactError, match=r"policy\.pt2 is of a kind that no version holds"):
        Registry().register("cartpole", package, "run-other")
