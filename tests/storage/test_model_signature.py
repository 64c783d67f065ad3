"""Files that were changed, added, lost, signed by a stranger or signed as something else do not pass."""

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from loomrl.errors import ArtifactError
from loomrl.storage import model_signature
from loomrl.storage.model_signature import SIGNATURE, is_signed, sign, verify
from loomrl.system.files import SUMS, sha256
from loomrl.system.security.signing_keys import ELLIPTIC, key_id, private_key, trusted
from loomrl.types import PolicyManifest
from tests.support.policies import discrete_folder


@pytest.fixture
def signed(loomrl_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CartPole's folder, signed by this installation."""
    monkeypatch.delenv(ELLIPTIC.variable, raising=False)
    folder = discrete_folder(tmp_path / "policy")
    sign(folder, "cartpole")
    return folder


def test_what_was_signed_passes_wherever_it_lies(signed: Path, tmp_path: Path) -> None:
    ours = key_id(private_key(ELLIPTIC).public_key())
    moved = Path(shutil.copytree(signed, tmp_path / "elsewhere"))
    assert verify(signed, "cartpole") == verify(moved, "cartpole") == ours
    (moved / SUMS).unlink()  # the registry vouches for it, not the signature
    assert verify(moved, "cartpole") == ours
    assert (is_signed(moved), is_signed(tmp_path)) == (True, False)


def test_the_library_itself_says_the_same(signed: Path) -> None:
    """The command in the module's docstring, with nothing of ours."""
    (key,) = trusted(ELLIPTIC).values()
    command = [sys.executable, "-m", "model_signing", "verify", "key", str(signed), "--signature"]
    command += [str(signed / SIGNATURE), "--ignore-paths", str(signed / SUMS), "--public_key", str(key.path)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    (signed / "extra.json").write_text("{}")
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0


def flip(name: str, place: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[place] ^= 1
        (folder / name).write_bytes(data)

    return change


def resign(update: Callable[[dict], object]) -> Callable[[Path], None]:
    """Change what the signature states and keep its bytes of signature."""

    def change(folder: Path) -> None:
        bundle = json.loads((folder / SIGNATURE).read_text())
        statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
        update(statement)
        bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
        (folder / SIGNATURE).write_text(json.dumps(bundle))

    return change


TAMPERED: dict[str, Callable[[Path], object]] = {
    "a bit of the graph": flip("policy.onnx", 100),
    "a bit of the manifest": flip("manifest.json", -3),
    "an extra file": lambda folder: (folder / "more.json").write_text("{}"),
    "an extra hidden file": lambda folder: (folder / ".gitignore").write_text("*"),
    "an extra file in a folder": lambda folder: (folder / "sub").mkdir() or (folder / "sub" / SUMS).write_text(""),
    "a link": lambda folder: (folder / "more.json").symlink_to(folder / "manifest.json"),
    "a lost file": lambda folder: (folder / "policy.onnx").unlink(),
    "a pickle": lambda folder: (folder / "weights.pkl").write_bytes(b"\x80\x04N."),
    "no JSON": lambda folder: (folder / SIGNATURE).write_text("no JSON"),
    "no bundle": lambda folder: (folder / SIGNATURE).write_text('{"verificationMaterial": []}'),
    "an empty signature": lambda folder: (folder / SIGNATURE).write_bytes(b""),
    "bytes that are no text": lambda folder: (folder / SIGNATURE).write_bytes(b"\xff\xfe"),
    "a statement without files": resign(lambda statement: statement["predicate"].update(resources=[])),
    "a statement of another kind": resign(lambda statement: statement.update(predicateType="https://other")),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_what_was_tampered_with_is_refused(what: str, signed: Path) -> None:
    TAMPERED[what](signed)
    with pytest.raises(ArtifactError):
        verify(signed, "cartpole")


def test_every_changed_byte_of_the_signature_is_refused(signed: Path) -> None:
    path = signed / SIGNATURE
    whole = path.read_bytes()
    raw = base64.b64decode(json.loads(whole)["dsseEnvelope"]["signatures"][0]["sig"])
    for place in range(len(raw)):
        bundle = json.loads(whole)
        other = bytes(byte ^ (place == number) for number, byte in enumerate(raw))
        bundle["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(other).decode()
        path.write_text(json.dumps(bundle))
        with pytest.raises(ArtifactError):
            verify(signed, "cartpole")


def test_a_strangers_signature_is_refused_until_the_key_is_trusted(
    signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Path(shutil.copytree(signed, tmp_path / "ours"))
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "stranger"))
    theirs = sign(signed, "cartpole")
    (key,) = trusted(ELLIPTIC).values()
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "home"))
    with pytest.raises(ArtifactError, match=f"{theirs[:16]}.*not among the 1 trusted keys.*keys trust FILE"):
        verify(signed, "cartpole")
    assert verify(ours, "cartpole") != theirs
    shutil.copy2(key.path, tmp_path / "home" / "keys")
    assert verify(signed, "cartpole") == theirs


def test_a_stranger_that_borrows_a_trusted_key_id_is_refused(
    signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = json.loads((signed / SIGNATURE).read_text())["verificationMaterial"]
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "stranger"))
    sign(signed, "cartpole")
    monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / "home"))
    forged = json.loads((signed / SIGNATURE).read_text()) | {"verificationMaterial": ours}
    (signed / SIGNATURE).write_text(json.dumps(forged))
    with pytest.raises(ArtifactError, match="not those that model.sig was made for"):
        verify(signed, "cartpole")


def test_a_replayed_signature_is_refused(signed: Path, tmp_path: Path) -> None:
    """Of another version's files, and of another policy's with its own files."""
    other = discrete_folder(tmp_path / "other", value=7.0)
    shutil.copy2(signed / SIGNATURE, other / SIGNATURE)
    with pytest.raises(ArtifactError, match="Hash mismatch for"):
        verify(other, "cartpole")
    with pytest.raises(ArtifactError, match="names the policy 'cartpole': it does not pass as 'hopper'"):
        verify(signed, "hopper")
    with pytest.raises(ArtifactError, match="names the policy 'cartpole'"):
        sign(signed, "hopper")


def test_what_could_run_code_is_not_signed(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "policy")
    (folder / "weights.pt").write_bytes(b"\x80\x04N.")
    with pytest.raises(ArtifactError, match=r"weights\.pt is of a kind that no version holds"):
        sign(folder, "cartpole")
    assert not is_signed(folder)


def listing(folder: Path, **files: str) -> None:
    """Put files in a version, and into the formats of its manifest."""
    for file in files.values():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_bytes(b"PK")
    stated = {one: {"file": file, "sha256": sha256(b"PK")} for one, file in files.items()}
    manifest = PolicyManifest.read(folder / "manifest.json")
    manifest.model_copy(update={"formats": stated}).write(folder / "manifest.json")


def test_a_version_holds_the_torch_files_that_its_manifest_lists(loomrl_home: Path, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "policy")
    listing(folder, torchscript="policy.torchscript.pt", torch_export="policy.pt2")
    assert sign(folder, "cartpole") == verify(folder, "cartpole")
    flip("policy.pt2", 0)(folder)
    with pytest.raises(ArtifactError, match=r"Hash mismatch for 'policy\.pt2'"):
        verify(folder, "cartpole")


@pytest.mark.parametrize(
    ("listed", "added"),
    [
        ({}, "policy.pt2"),
        ({}, "policy.torchscript.pt"),
        ({"torchscript": "policy.torchscript.pt"}, "policy.pt2"),
        ({"torchscript": "policy.pt2"}, "policy.pt2"),
        ({"torch_export": "policy.pt2"}, "other.pt2"),
        ({"torchscript": "policy.torchscript.pt"}, "policy.pt"),
        ({"torch_export": "policy.pt2"}, "sub/policy.pt2"),
        ({"torch_export": "sub/policy.pt2"}, "sub/policy.pt2"),
        ({"torchscript": "weights.pkl"}, "weights.pkl"),
        ({"pickle": "policy.pt2"}, "policy.pt2"),
    ],
)
def test_no_other_torch_file_is_signed_or_passes(
    loomrl_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: dict[str, str], added: str
) -> None:
    folder = discrete_folder(tmp_path / "policy")
    listing(folder, **listed)
    (folder / added).parent.mkdir(exist_ok=True)
    (folder / added).write_bytes(b"PK")
    refused = rf"{added} is of a kind that no version holds"
    with pytest.raises(ArtifactError, match=refused):
        sign(folder, "cartpole")
    with monkeypatch.context() as patch:  # who signs like us and looks at nothing
        patch.setattr(model_signature, "_check_kinds", lambda folder: None)
        patch.setattr(model_signature, "_check_formats", lambda folder: None)
        sign(folder, "cartpole")
    with pytest.raises(ArtifactError, match=refused):
        verify(folder, "cartpole")


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b"PK2"), Path.unlink], ids=["another", "none"])
def test_a_torch_file_is_the_one_the_manifest_lists(
    loomrl_home: Path, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    folder = discrete_folder(tmp_path / "policy")
    listing(folder, torch_export="policy.pt2")
    change(folder / "policy.pt2")
    with pytest.raises(ArtifactError, match=r"policy\.pt2 is not the file that manifest\.json lists"):
        sign(folder, "cartpole")


def test_a_key_replaced_by_another_leaves_old_signatures_valid(
    signed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = generate_private_key(SECP256R1())
    (tmp_path / "new.pem").write_bytes(
        new.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    monkeypatch.setenv(ELLIPTIC.variable, str(tmp_path / "new.pem"))
    other = discrete_folder(tmp_path / "other", value=7.0)
    assert sign(other, "cartpole") == verify(other, "cartpole") == key_id(new.public_key())
    assert verify(signed, "cartpole") != key_id(new.public_key())
