"""The files of a version: what identifies them, who signed them, and whether they are still what was registered."""

import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from loomrl.errors import ArtifactError
from loomrl.storage.model_signature import SIGNATURE, sign
from loomrl.system.files import (
    SUMS,
    canonical_json,
    changed_file,
    recorded_sums,
    sha256,
    sha256_file,
    write_atomic,
    write_sums,
)
from loomrl.system.home import inside
from loomrl.system.schema import Document

ARTIFACT_FOLDER = "policy"
DIGEST = "loomrl.digest"
SUMS_DIGEST = "loomrl.sums_sha256"
STATED = "loomrl.registered_statement"  # what says which number the files have; its name stands among the files, too
SIGNATURE_TAG = "loomrl.model_sig"  # a signature made after the version was registered, whole

_IDENTITY = ("policy.onnx", "manifest.json")  # the files that make two versions the same policy
_MLMODEL = "MLmodel"
_ELSEWHERE = ("http", "https", "ftp", "models", "runs")


class PolicyVersion(Document):
    """One immutable version of a policy in the registry."""

    policy: str
    version: str
    run_id: str  # the life-cycle run that registered it
    tags: dict[str, str]  # of MLflow, as they were read
    source: str  # where its files lie, as the registry names it
    created: str  # ISO 8601, UTC

    @property
    def digest(self) -> str:
        """SHA-256 over the digests of `policy.onnx` and `manifest.json`, as its tag says; empty without the tag."""
        return self.tags.get(DIGEST, "")

    @property
    def sums_sha256(self) -> str:
        """SHA-256 of `SHA256SUMS`, the list of all its files' digests, as its tag says; empty without the tag."""
        return self.tags.get(SUMS_DIGEST, "")


def export_digest(folder: Path) -> str:
    """What makes two versions the same: SHA-256 over the digests of `policy.onnx` and `manifest.json`, 64 hex digits.

    Raises:
        ArtifactError: when one of these files is missing or cannot be read.
    """
    return sha256(canonical_json({name: sha256_file(folder / name) for name in _IDENTITY}))


def verify_version(folder: Path, version: PolicyVersion) -> None:
    """Check files against the digests recorded in the registry when the version was made.

    Raises:
        ArtifactError: naming the file that differs, is missing or was added, or cannot be read.
    """
    name = f"{version.policy}@{version.version}"
    if _sums_digest(folder) != version.sums_sha256:
        raise ArtifactError(
            f"{name}: {SUMS} in {version.source} is not the one that was registered; the artifact store was changed: "
            f"restore it from a backup, or go back with `loomrl policy rollback {version.policy}`"
        )
    joined = {SIGNATURE: sha256(version.tags[SIGNATURE_TAG].encode())} if SIGNATURE_TAG in version.tags else {}
    if changed := changed_file(folder, joined):
        raise ArtifactError(
            f"{name}: {changed} in {version.source} was changed after it was registered; "
            f"restore the store from a backup, or go back with `loomrl policy rollback {version.policy}`"
        )
    if export_digest(folder) != version.digest:
        raise ArtifactError(f"{name}: the files in {version.source} are whole but not the policy its tag names")


def _sums_digest(folder: Path) -> str | None:
    return sha256_file(folder / SUMS) if os.path.isfile(folder / SUMS) else None  # also where it may not be looked at


def _listed_digest(folder: Path) -> str | None:
    """The `export_digest` of the files that a folder's list names."""
    listed = recorded_sums(folder)
    if not set(_IDENTITY) <= listed.keys():
        return None
    return sha256(canonical_json({name: listed[name] for name in _IDENTITY}))


def add_signature(folder: Path, version: PolicyVersion) -> None:
    """Write the signature that was made after a version was registered, where its tag holds one, beside its files.

    The files must be verified already. Does nothing where the signature is there.

    Raises:
        ArtifactError: when it cannot be written.
    """
    signature = version.tags.get(SIGNATURE_TAG, "").encode()
    path = folder / SIGNATURE
    if signature and not (path.is_file() and path.read_bytes() == signature):
        write_atomic(path, signature)


def local_source(version: PolicyVersion) -> Path | None:
    """The folder of a version's files on this machine, as `local_folder` says; None where the store is elsewhere."""
    return local_folder(version.source)


def local_folder(uri: str) -> Path | None:
    """The folder an artifact URI means on this machine; None where only a server or an object store has it.

    A tracking server started by `make up` serves `LOOMRL_HOME/mlartifacts` as `mlflow-artifacts:/`. What was
    registered through it must stay readable when it is down and the same database is used directly. The folder of such
    a URI is there; that of a path or a `file:` URI need not be.

    Raises:
        ConfigError: when an `mlflow-artifacts:` URI leads out of the home.
    """
    place = urlsplit(uri)
    if place.scheme == "":
        return Path(uri)
    if place.scheme == "file":
        return Path(url2pathname(place.path))
    if place.scheme != "mlflow-artifacts" or place.netloc:
        return None
    served = served_folder(uri)
    return served if served.is_dir() else None


def validate_location(uri: str) -> None:
    """Refuse a place that LoomRL registers nothing at: MLflow's client would send its login to a host that is named
    there, or look up another place.

    Raises:
        ArtifactError: naming the place.
    """
    place = urlsplit(uri)
    if place.scheme in _ELSEWHERE or (place.scheme == "mlflow-artifacts" and place.netloc):
        raise ArtifactError(f"artifacts are said to lie at {uri}, which is no place that LoomRL registers")


def served_folder(uri: str) -> Path:
    """Where a server that `make up` started puts what it calls `mlflow-artifacts:/...`.

    Raises:
        ConfigError: when that is outside the home: whoever may write to MLflow says what an artifact's place is.
    """
    return inside("mlartifacts", *uri.removeprefix("mlflow-artifacts:").strip("/").split("/"))


def copy_files(version: PolicyVersion, source: Path, target: Path) -> Path:
    """Copy a version's files from a folder of this machine, if it is one that holds them, to `target`; returns that.

    Whoever writes to MLflow says which folder that is: nothing else of it is read, and nothing copied, unless its list
    of files is the registered one, and names graph and manifest of the version.

    Raises:
        ArtifactError: when the folder is another, or cannot be read; some files may be in `target` then.
    """
    name = f"{version.policy}@{version.version}"
    if _sums_digest(source) != version.sums_sha256 or _listed_digest(source) != version.digest:
        raise ArtifactError(
            f"{name}: {source} does not hold what was registered; the artifact store was changed, or is not reached "
            f"from this machine: restore it from a backup, or go back with `loomrl policy rollback {version.policy}`"
        )
    try:
        return Path(shutil.copytree(source, target))
    except (OSError, shutil.Error) as error:
        raise ArtifactError(
            f"{name}: its files at {source} cannot be read: {error}; "
            f"restore them from a backup, or go back with `loomrl policy rollback {version.policy}`"
        ) from error


def is_intact(folder: Path, version: PolicyVersion) -> bool:
    """Whether a folder holds exactly the registered files; False also where one cannot be read."""
    try:
        verify_version(folder, version)
    except ArtifactError:
        return False  # a torn or older copy: it is fetched again
    return True


def stage_export(folder: Path, staged: Path, policy: str, mlflow_run_id: str) -> Path:
    """Copy an export folder to `staged`, check the copy against its `SHA256SUMS`, add `MLmodel`, sign all of it and
    write `SHA256SUMS` anew; returns `staged`.

    Raises:
        ArtifactError: when a file is missing, was changed or is of a kind that no version holds, or the manifest names
            another policy.
        ConfigError: when this installation has no key to sign with.
    """
    shutil.copytree(folder, staged)
    _verify_listed(staged)
    write_atomic(staged / _MLMODEL, _mlmodel(mlflow_run_id))
    sign(staged, policy)
    write_sums(staged)
    return staged


def _verify_listed(folder: Path) -> None:
    """Like `verify_sums`, but files may have joined since."""
    manifest = folder / SUMS
    if not manifest.is_file():
        raise ArtifactError(f"{manifest} is missing; run the export stage")
    for name, digest in recorded_sums(folder).items():
        if sha256_file(folder / name) != digest:
            raise ArtifactError(f"{folder / name} was changed since it was exported; run the export stage again")


def _mlmodel(mlflow_run_id: str) -> bytes:
    """The descriptor that lets `mlflow.pyfunc.load_model` read `policy.onnx` as it is.

    `mlflow.onnx.log_model` would write the graph again, with other bytes than those the gate examined.
    """
    import yaml

    onnx = {"loader_module": "mlflow.onnx", "data": "policy.onnx", "env": {}, "python_version": "3.11.0"}
    flavors = {"onnx": {"data": "policy.onnx", "providers": ["CPUExecutionProvider"]}, "python_function": onnx}
    document = {"artifact_path": ARTIFACT_FOLDER, "flavors": flavors, "run_id": mlflow_run_id}
    return yaml.safe_dump({**document, "metadata": {"statement": STATED}}, sort_keys=True).encode()


def is_stated(folder: Path) -> bool:
    """Whether files say that they were registered with a statement about their number.

    Raises:
        ArtifactError: when their descriptor cannot be read.
    """
    import yaml

    try:
        document = yaml.safe_load((folder / _MLMODEL).read_bytes())
    except (OSError, yaml.YAMLError) as error:
        raise ArtifactError(f"{folder / _MLMODEL} cannot be read: {error}; register the policy again") from error
    metadata = document.get("metadata") if isinstance(document, dict) else None
    return isinstance(metadata, dict) and metadata.get("statement") == STATED
