"""Versions of installed distributions, which say so where the files are not those that were published.

A version stands for a distribution's files as long as they are what its RECORD says. Where one was edited in place, or
the record lists none of them, as in an editable installation, a digest of such files stands behind the version:
`1.0+edited.0123456789ab`. Not looked at are compiled files, files that are gone or were changed without a later time
or another size, and distributions that conda or an operating system installed: their records do not fit their files.
An editable installation says by `direct_url.json` that it is one. The names of its code stand in `top_level.txt` where
setuptools made it; else they are those of what lies in the folders that its `.pth` files name.
"""

import base64
import csv
import json
import os
import pkgutil
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from loomrl.environment.sources.roots import files_of, find_location
from loomrl.errors import ArtifactError
from loomrl.system.files import canonical_json, sha256, sha256_file
from loomrl.system.plugins import installed_version

_COMPILED = re.compile(r"\.(so|pyd|dll|dylib)\b")
# Scripts, how it is installed, what it is.
_NO_CODE = re.compile(r"\.\./|__editable__|[^/]+\.pth$|[^/]*\.dist-info/")
_NOT_IMPORTED = {"conftest", "noxfile", "setup", "test", "tests"}  # by others, though it lies beside the code
_EDITED = re.compile(r"[+.]edited\.([0-9a-f]{12})$")
_OWN = "loomrl"  # its code counts by the files that each stage runs


def exact_version(name: str) -> str:
    """The version of an installed distribution, with a digest behind where no version stands for its files. Warns where
    none does and it is not known which these are."""
    version, edited = distribution(name).version, _edited_files(name)
    separator = "." if "+" in version else "+"
    return f"{version}{separator}edited.{sha256(canonical_json(edited))[:12]}" if edited else version


def edited_digest(version: str) -> str | None:
    """The digest in an exact version, of the files that no version stands for; None where it stands for all."""
    found = _EDITED.search(version)
    return found and found[1]


def require_same_files(recorded: Mapping[str, str]) -> None:
    """Check installed distributions of the release that is `recorded`, name -> exact version, once in a process: what
    was imported stays what runs. Other releases are none of this check's business.

    Raises:
        ArtifactError: where the files of one are not those recorded; names it, a file where that is known, and the
            fix.
    """
    for name, version in recorded.items():
        _require_same_files(name, version)


@cache
def _require_same_files(name: str, recorded: str) -> None:
    release = _EDITED.sub("", recorded)
    if installed_version(name) != release or (found := exact_version(name)) == recorded:
        return
    if recorded == release and not _lists_code(distribution(name), _record(name) or []):
        warnings.warn(
            f"the snapshot does not say which files of {name} {release} it was taken with, as earlier versions of "
            "loomrl took it from an editable installation: take it again",
            stacklevel=2,
        )
    else:
        raise ArtifactError(
            f"the snapshot was taken with {name} {recorded}, installed is {found}: {_difference(name, recorded)}, or "
            "take the snapshot again"
        )


def _difference(name: str, recorded: str) -> str:
    """How an installed distribution's files differ from those recorded, and how to get these back: of edited ones no
    more than a digest was recorded."""
    installed, file = distribution(name), next(iter(_edited_files(name)), None)
    if not _lists_code(installed, _record(name) or []):
        return "its working copy has changed; check out the files it was taken with"
    if file is None:
        return "its files are those published, the snapshot was taken with edited ones or a working copy; restore those"
    if edited_digest(recorded):
        return f"files of it were edited then too, but others than now or otherwise (edited now: {file}); restore those"
    if _direct_url(installed):
        return f"{file} differs; undo the change"  # what an index has under this name may be another package
    return f"{file} differs; undo the change (`pip install --force-reinstall --no-deps {name}=={recorded}`)"


def _edited_files(name: str) -> dict[str, str]:
    """File -> SHA-256 of what no version stands for."""
    installed, rows = distribution(name), _record(name)
    if name == _OWN or rows is None or (installed.read_text("INSTALLER") or "").strip() == "conda":
        return {}
    if _lists_code(installed, rows):
        return dict(_changed(str(installed.locate_file("")), rows))
    return _working_copy(installed, rows)


def _working_copy(installed: Distribution, rows: list[list[str]]) -> dict[str, str]:
    """File -> SHA-256 of what is imported of an installation that lists no code."""
    tops = (installed.read_text("top_level.txt") or "").split() or _names_in(_path_folders(installed, rows))
    places = {top: place for top in tops if (place := find_location(top)) is not None}
    files = {file: sha256_file(path) for top, place in places.items() for path, file in files_of(place, top)}
    if not files and _is_editable(installed):
        warnings.warn(
            f"which files {installed.metadata['Name']} consists of is not known, as it is installed in editable mode, "
            "so that a change of them is not seen: install it in the usual way",
            stacklevel=2,
        )
    return files


def _names_in(folders: Iterable[str]) -> list[str]:
    """The packages and modules that lie in folders."""
    return sorted({module.name for module in pkgutil.iter_modules(folders)} - _NOT_IMPORTED)


def _path_folders(installed: Distribution, rows: list[list[str]]) -> Iterator[str]:
    """The folders that an installation's `.pth` files put on Python's path."""
    for file, *_ in rows:
        path = Path(str(installed.locate_file(file)))
        if re.fullmatch(r"[^/]+\.pth", file) and path.is_file():
            lines = map(str.strip, path.read_text().splitlines())
            yield from (str(path.parent / line) for line in lines if line and not re.match(r"#|import\s", line))


def _direct_url(installed: Distribution) -> dict[str, Any]:
    """Where a distribution came from; empty where that is an index."""
    found: dict[str, Any] = json.loads(installed.read_text("direct_url.json") or "{}")
    return found


def _is_editable(installed: Distribution) -> bool:
    return bool(_direct_url(installed).get("dir_info", {}).get("editable"))


def _record(name: str) -> list[list[str]] | None:
    """The rows of an installed distribution's RECORD: file, digest, size; None where there is no record."""
    record = distribution(name).read_text("RECORD")
    return None if record is None else list(csv.reader(record.splitlines()))


def _lists_code(installed: Distribution, rows: list[list[str]]) -> bool:
    """Whether a record lists code; that of an editable installation has at most a hook that finds it."""
    return not _is_editable(installed) and any(digest and not _NO_CODE.match(file) for file, digest, _ in rows)


def _changed(folder: str, rows: list[list[str]]) -> Iterator[tuple[str, str]]:
    """Files with other content than a record's rows say. Only those younger than it, or of another size, are read."""
    record = next((_status(folder, file) for file, _, _ in rows if file.endswith(".dist-info/RECORD")), None)
    for file, digest, size in rows:
        kind, _, expected = digest.partition("=")
        if kind != "sha256" or _COMPILED.search(file) or _NO_CODE.match(file):
            continue
        status = _status(folder, file)
        if status is None or (record and status.st_mtime_ns <= record.st_mtime_ns and size == str(status.st_size)):
            continue
        found = sha256_file(Path(folder, file))
        if base64.urlsafe_b64encode(bytes.fromhex(found)).rstrip(b"=").decode() != expected:
            yield file, found


def _status(folder: str, file: str) -> os.stat_result | None:
    try:
        return os.stat(f"{folder}/{file}")  # of thousands of files, and a Path takes longer than the call
    except OSError:
        return None
