"""Keys are made once, told apart by what they sign, and trusted only when somebody said so."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256K1, SECP384R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key as generate_rsa
from typer.testing import CliRunner

from loomrl.cli.main import app
from loomrl.errors import ArtifactError, ConfigError
from loomrl.system.security.signing_keys import (
    ED25519,
    ELLIPTIC,
    TRUSTED_VARIABLE,
    key_id,
    private_key,
    private_path,
    trust,
    trusted,
)


@pytest.fixture(autouse=True)
def _own_keys(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (ED25519, ELLIPTIC):
        monkeypatch.delenv(kind.variable, raising=False)


@pytest.mark.parametrize("kind", [ED25519, ELLIPTIC], ids=lambda kind: kind.signs)
def test_a_key_is_made_once_closed_to_others_and_trusted_for_its_kind(kind, loomrl_home: Path) -> None:
    key = private_key(kind)
    assert key_id(private_key(kind).public_key()) == key_id(key.public_key())
    assert private_path(kind) == loomrl_home / "keys" / kind.file
    assert private_path(kind).stat().st_mode & 0o777 == 0o600
    other = ED25519 if kind is ELLIPTIC else ELLIPTIC
    assert list(trusted(kind)) == [key_id(key.public_key())]
    assert trusted(other) == {}


def test_another_machines_key_is_trusted_once_it_is_put_there(tmp_path: Path) -> None:
    theirs = generate_private_key(SECP384R1()).public_key()
    path = write_public(tmp_path / "theirs.pem", theirs)
    assert trust(path) == trust(path) == key_id(theirs)
    assert list(trusted(ELLIPTIC)) == [key_id(theirs)]


def test_a_folder_of_trusted_keys_may_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = generate_private_key(SECP384R1()).public_key()
    (tmp_path / "mounted").mkdir()
    write_public(tmp_path / "mounted" / "theirs.pub.pem", theirs)
    monkeypatch.setenv(TRUSTED_VARIABLE, str(tmp_path / "mounted"))
    ours = private_key(ELLIPTIC).public_key()
    assert set(trusted(ELLIPTIC)) == {key_id(ours), key_id(theirs)}
    monkeypatch.setenv(TRUSTED_VARIABLE, str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match=f"{TRUSTED_VARIABLE}.*missing is no folder"):
        trusted(ELLIPTIC)


@pytest.mark.parametrize("kind", ["RSA", "Bitcoin's curve", "no key"])
def test_keys_that_sign_nothing_here_are_refused(kind: str, tmp_path: Path, loomrl_home: Path) -> None:
    path = tmp_path / "odd.pem"
    if kind == "no key":
        path.write_text("-----BEGIN PUBLIC KEY-----\n")
    else:
        key = generate_rsa(65537, 2048) if kind == "RSA" else generate_private_key(SECP256K1())
        write_public(path, key.public_key())
    with pytest.raises(ArtifactError, match=r"odd\.pem"):
        trust(path)
    assert not list((loomrl_home / "keys").glob("*"))


@pytest.mark.parametrize(("kind", "wrong"), [(ED25519, ELLIPTIC), (ELLIPTIC, ED25519)], ids=["cases", "versions"])
def test_a_configured_key_of_the_other_kind_is_named(
    kind, wrong, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private_key(wrong)
    monkeypatch.setenv(kind.variable, str(private_path(wrong)))
    with pytest.raises(ConfigError, match=rf"{kind.variable} must name a key of {kind.algorithm} \(`openssl genpkey"):
        private_key(kind)


def test_the_commands_show_make_and_trust_keys(tmp_path: Path) -> None:
    shown = run("signing")
    ours = [key_id(private_key(kind).public_key()) for kind in (ED25519, ELLIPTIC)]
    assert [identity in shown for identity in ours] == [True, True]
    theirs = Ed25519PrivateKey.generate().public_key()
    assert key_id(theirs) in run("trust", str(write_public(tmp_path / "theirs.pem", theirs)))
    listed = run("trusted")
    assert [identity in listed for identity in (*ours, key_id(theirs))] == [True, True, True]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["keys", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def write_public(path: Path, key) -> Path:
    path.write_bytes(key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    return path
