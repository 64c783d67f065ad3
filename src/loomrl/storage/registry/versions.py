"""Policy versions and the aliases that point at them."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loomrl.errors import ArtifactError, ConfigError, LoomRLError, ServiceError
from loomrl.storage.registry.connection import absent_is_none, mlflow_client, present_is_fine
from loomrl.storage.registry.files import (
    ARTIFACT_FOLDER,
    DIGEST,
    SUMS_DIGEST,
    PolicyVersion,
    add_signature,
    copy_files,
    export_digest,
    is_intact,
    local_source,
    stage_export,
    validate_location,
    verify_version,
)
from loomrl.storage.registry.runs import RUN_ID, find_run, finish_run, log_artifacts, start_run
from loomrl.storage.registry.statements import RegisteredStatement, if_valid, state_registered
from loomrl.system.files import SUMS, sha256_file
from loomrl.system.home import tracking_uri
from loomrl.system.locks import hold_lock, lock_file

CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"
WILL_BE_STATED = "loomrl.will_be_stated"  # from before its number is known, which the statement names


class Registry:
    """Policy versions and their aliases in MLflow, which is asked when a method is called: every method raises
    `ServiceError` when MLflow cannot be reached or fails.

    Args:
        uri: MLflow's tracking URI; None: that of the environment, else SQLite under the home.
    """

    def __init__(self, uri: str | None = None) -> None:
        self.tracking_uri = uri or tracking_uri()

    def register(self, policy: str, folder: Path, run_id: str, tags: Mapping[str, str] | None = None) -> PolicyVersion:
        """Make a version of an export folder; return the existing one when the same policy is there already.

        The folder is verified against its `SHA256SUMS`; files that joined it since (envelope, evaluation) are added
        to the version's own, and all are signed, and so is the number that they get. The same policy means the same
        `policy.onnx` and `manifest.json`.

        Raises:
            ArtifactError: when a file is missing or was changed, is of a kind that no version holds, or names another
                policy.
            ConfigError: when this installation has no key to sign with.
            ServiceError: when MLflow cannot be reached, or another process registers this policy for more than ten
                minutes. A version that MLflow made without the signed statement is passed over by the next call.
        """
        digest = export_digest(folder)
        with hold_lock(lock_file(f"register-{policy}"), 600):  # one at a time on this machine
            existing = [
                version for version in self.versions(policy) if version.digest == digest and not _is_torn(version)
            ]
            if existing:
                return existing[0]
            return self._register(policy, folder, run_id, {**(tags or {}), DIGEST: digest})

    def _register(self, policy: str, folder: Path, run_id: str, tags: dict[str, str]) -> PolicyVersion:
        mlflow_run_id = find_run(policy, run_id, self.tracking_uri)
        if mlflow_run_id is None:
            mlflow_run_id = start_run(policy, run_id, uri=self.tracking_uri)
            finish_run(mlflow_run_id, "FINISHED", self.tracking_uri)
        with tempfile.TemporaryDirectory(prefix="loomrl-register-") as temporary:
            staged = stage_export(folder, Path(temporary) / ARTIFACT_FOLDER, policy, mlflow_run_id)
            sums_digest = sha256_file(staged / SUMS)
            # Named by its content: a folder left behind by an interrupted registration never mixes with this one.
            place = f"{ARTIFACT_FOLDER}/{sums_digest[:16]}"
            log_artifacts(mlflow_run_id, staged, place, self.tracking_uri)
        tags = {**tags, SUMS_DIGEST: sums_digest, RUN_ID: run_id, WILL_BE_STATED: "yes"}
        with self._calls() as client:
            with present_is_fine():
                client.create_registered_model(policy)
            source = f"{client.get_run(mlflow_run_id).info.artifact_uri}/{place}"
            version = _version(client.create_model_version(policy, source, run_id=mlflow_run_id, tags=tags))
        state_registered(self, version)
        return self.require(policy, version.version)

    def get(self, policy: str, alias_or_version: str) -> PolicyVersion | None:
        """One version by number or alias; None when there is no such version, alias or policy."""
        with self._calls() as client, absent_is_none():
            if str(alias_or_version).isdecimal():
                return _version(client.get_model_version(policy, str(alias_or_version)))
            return _version(client.get_model_version_by_alias(policy, alias_or_version))
        return None

    def require(self, policy: str, alias_or_version: str) -> PolicyVersion:
        """One version by number or alias.

        Raises:
            ConfigError: when there is none; names those that exist.
        """
        if found := self.get(policy, alias_or_version):
            return found
        known = ", ".join(version.version for version in self.versions(policy)) or "none"
        aliases = ", ".join(f"{alias}={version}" for alias, version in self.aliases(policy).items()) or "none"
        raise ConfigError(f"{policy}@{alias_or_version} is not registered; versions: {known}; aliases: {aliases}")

    def policies(self) -> list[str]:
        """The names of all policies that have a registered model, sorted."""
        with self._calls() as client:
            return sorted(model.name for model in _pages(client.search_registered_models))

    def versions(self, policy: str) -> list[PolicyVersion]:
        """All versions of a policy in the registry, oldest first; none for a policy it does not know."""
        with self._calls() as client:
            found = _pages(client.search_model_versions, filter_string=f"name='{policy}'")
            return sorted((_version(version) for version in found), key=lambda version: int(version.version))

    def aliases(self, policy: str) -> dict[str, str]:
        """Alias -> number of the version it names; empty for a policy that is not registered."""
        with self._calls() as client, absent_is_none():
            found = client.get_registered_model(policy).aliases
            return {alias: str(version) for alias, version in sorted(found.items())}
        return {}

    def set_aliases(self, policy: str, moves: Mapping[str, str | None]) -> None:
        """Move several aliases, in the order given; None removes one. All of them move or none.

        Each move is atomic in MLflow: an alias that is moved is never missing in between, so a server that polls
        sees the old or the new version. When one move fails, those made before it are undone.

        Raises:
            ConfigError: when a version does not exist.
            ServiceError: when MLflow fails; says whether the former aliases stand.
        """
        before = self.aliases(policy)
        for version in moves.values():
            if version is not None:
                self.require(policy, version)
        done: list[str] = []
        try:
            for alias, version in moves.items():
                if before.get(alias) != version:
                    done.append(alias)
                    self._move(policy, alias, version)
        except LoomRLError as error:
            self._undo(policy, before, done, error)
            raise

    def _undo(self, policy: str, before: Mapping[str, str], done: Sequence[str], error: LoomRLError) -> None:
        try:
            for alias in reversed(done):
                self._move(policy, alias, before.get(alias))
        except LoomRLError as second:
            raise ServiceError(
                f"{policy}: moving aliases failed ({error}) and so did putting them back ({second}); "
                f"they stood at {dict(before)}; run `loomrl policy rollback {policy}` once MLflow answers"
            ) from error

    def _move(self, policy: str, alias: str, version: str | None) -> None:
        with self._calls() as client:
            if version is None:
                with absent_is_none():
                    client.delete_registered_model_alias(policy, alias)
            else:
                client.set_registered_model_alias(policy, alias, version)

    def set_tag(self, version: PolicyVersion, key: str, value: str) -> None:
        """Set a tag on a version, in place of a value that it had; `version.tags` stays as it was read."""
        with self._calls() as client:
            client.set_model_version_tag(version.policy, version.version, key, value)

    def delete_tag(self, version: PolicyVersion, key: str) -> None:
        """Remove a tag from a version, if it is there."""
        with self._calls() as client, absent_is_none():
            client.delete_model_version_tag(version.policy, version.version, key)

    def download(self, version: PolicyVersion, destination: Path) -> Path:
        """Fetch a version's files into `destination`, verified, and return it; a verified copy already there is kept.

        Anything else there is replaced once the new files are verified; where that fails it stays.

        Raises:
            ArtifactError: when the store lost, changed or added a file.
            ServiceError: when the store cannot be reached.
        """
        if destination.is_dir() and is_intact(destination, version):
            add_signature(destination, version)
            return destination
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{destination.name}.", dir=destination.parent) as temporary:
            fetched = self._fetch(version, Path(temporary))
            verify_version(fetched, version)
            add_signature(fetched, version)
            if destination.exists():
                shutil.rmtree(destination)
            os.replace(fetched, destination)
        return destination

    def _fetch(self, version: PolicyVersion, temporary: Path) -> Path:
        try:
            validate_location(version.source)
        except ArtifactError as error:
            raise ArtifactError(
                f"{version.policy}@{version.version}: {error}; delete this version in MLflow"
            ) from error
        if local := local_source(version):
            return copy_files(version, local, temporary / "files")
        from mlflow.artifacts import download_artifacts

        target = temporary / "files"
        target.mkdir()
        with self._calls():
            return Path(
                download_artifacts(artifact_uri=version.source, dst_path=str(target), tracking_uri=self.tracking_uri)
            )

    def _calls(self) -> AbstractContextManager[Any]:
        return mlflow_client(self.tracking_uri)


def _is_torn(version: PolicyVersion) -> bool:
    """Whether it was registered and what says so is missing: the process died in between, or it was deleted."""
    return WILL_BE_STATED in version.tags and if_valid(RegisteredStatement, version) is None


def _version(found: Any) -> PolicyVersion:
    created = datetime.fromtimestamp(found.creation_timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    tags = {str(key): str(value) for key, value in found.tags.items()}
    return PolicyVersion(
        policy=found.name,
        version=str(found.version),
        run_id=tags.get(RUN_ID, ""),
        tags=tags,
        source=found.source,
        created=created,
    )


def _pages(search: Any, **arguments: Any) -> Iterator[Any]:
    token = None
    while True:
        page = search(page_token=token, **arguments)
        yield from page
        token = page.token
        if not token:
            return
