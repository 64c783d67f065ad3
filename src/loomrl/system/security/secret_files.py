"""Files that seem to hold a secret: a key, a token, a password.

A file is suspected for its name, or for a line that `detect-secrets` knows: private keys, the tokens of known services,
and what is assigned to a name such as `password`. What only looks random is not suspected: digests do. Files in other
encodings are read as what they seem to be, and of binary ones the text that stands in them.
A line with the comment `pragma: allowlist secret` is none, nor is a placeholder such as `name:TOKEN@host`.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

_NAMES = re.compile(
    r"\.env(\..+)?|.+\.env|\.netrc|\.pypirc|\.npmrc|\.pgpass|\.htpasswd|\.git-credentials|credentials(\..+)?"
    r"|id_(rsa|dsa|ecdsa|ed25519)|.+\.(pem|key|p12|pfx|jks|keystore|kdbx|kubeconfig)|kubeconfig",
    re.IGNORECASE | re.DOTALL,
)
_LOGINS = ((".docker", "config.json"), (".kube", "config"))  # whose own names say nothing
_COPY = re.compile(r"(\.(bak|old|orig|save|swp)|~)+$", re.IGNORECASE)  # of a file with the name before it
_EXAMPLES = re.compile(r".*\.(example|sample|template|dist)(\..+)?", re.IGNORECASE)  # their lines are looked at
_TEXT_IN_BINARY = re.compile(rb"(?:[\t -~]\x00{3}){6,}|(?:[\t -~]\x00){6,}|[\t -~]{6,}")  # UTF-32, UTF-16, one byte
_MOST_BINARY_BYTES = 20_000_000  # that are looked at, some seconds' work
_CHUNK = 1_000_000  # characters
_OWN_PATH = f"file://{Path(__file__).with_name('secret_keywords.py')}"
_OWN_PLUGINS = {name: {"name": name, "path": _OWN_PATH} for name in ("OtherKeyword", "EnvironmentSecret")}
_SECTION = re.compile(
    r"([^\S\n]*([#;].*)?\n)*[^\S\n]*\["
)  # of a file of settings, whose lines are rewritten before they are read
_TOO_VAGUE = {"Base64HighEntropyString", "HexHighEntropyString", "IPPublicDetector"}
_PLACEHOLDERS = "(?i)^(password|secret|token)$"  # as in name:TOKEN@host
_FILTERS = (
    "allowlist.is_line_allowlisted",
    "heuristic.is_indirect_reference",
    "heuristic.is_likely_id_string",
    "heuristic.is_not_alphanumeric_string",
    "heuristic.is_potential_uuid",
    "heuristic.is_prefixed_with_dollar_sign",
    "heuristic.is_sequential_string",
    "heuristic.is_templated_secret",
)


def suspects(paths: Iterable[Path]) -> dict[Path, str]:
    """Those files that seem to hold a secret, each with why, such as "its name" or "line 3: GitHub Token"; empty for
    none.

    Paths that are no files, and links, are judged by their names alone.

    Raises:
        OSError: when a file cannot be read.
    """
    found = {}
    for path in paths:
        why = "its name" if _is_suspect_name(path) else next(iter(_lines(path)), None)
        if why is not None:
            found[path] = why
    return found


def suspicious_lines(paths: Iterable[Path]) -> list[str]:
    """All lines of files that seem to hold a secret, each such as "src/a.py, line 3: GitHub Token"; empty for none.

    Raises:
        OSError: when a file cannot be read.
    """
    return [f"{path}, {line}" for path in paths for line in _lines(path)]


def _is_suspect_name(path: Path) -> bool:
    name = _COPY.sub("", path.name.strip())
    is_suspect = _NAMES.fullmatch(name) is not None and _EXAMPLES.fullmatch(name) is None
    return is_suspect or (path.parent.name, name) in _LOGINS


@cache
def _detectors() -> dict[str, Any]:
    """All that are used, by their names."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.settings import get_plugins, transient_settings

    known: dict[str, type] = get_mapping_from_secret_type_to_class()
    names = sorted({kind.__name__ for kind in known.values()} - _TOO_VAGUE)
    with transient_settings({"plugins_used": [*({"name": name} for name in names), *_OWN_PLUGINS.values()]}):
        get_mapping_from_secret_type_to_class.cache_clear()  # so that it finds our own
        return {type(one).__name__: one for one in get_plugins()}


@contextmanager
def _using(names: Iterable[str]) -> Iterator[None]:
    """Let `detect-secrets` look with these detectors, and with our filters."""
    from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    from detect_secrets.settings import transient_settings

    settings = {
        "plugins_used": [{"name": name, **_OWN_PLUGINS.get(name, {})} for name in names],
        "filters_used": [
            *({"path": f"detect_secrets.filters.{name}"} for name in _FILTERS),
            {"path": "detect_secrets.filters.regex.should_exclude_secret", "pattern": [_PLACEHOLDERS]},
        ],
    }
    with transient_settings(settings):
        get_mapping_from_secret_type_to_class.cache_clear()  # so that it finds our own
        yield


def _to_look_with(path: Path) -> list[str]:
    """The detectors that may find something in a text file; all, where it is not Python, so not read as it stands.

    `detect-secrets` asks each detector about each line, which takes a minute for a thousand files. What is found in a
    line is found by the same expressions in the whole text.
    """
    from detect_secrets.plugins.base import RegexBasedDetector
    from detect_secrets.plugins.keyword import DENYLIST, REGEX_BY_FILETYPE
    from detect_secrets.util.filetype import FileType, determine_file_type

    kind = determine_file_type(str(path))
    if kind != FileType.PYTHON or _SECTION.match(text := path.read_text("utf-8")):
        return list(_detectors())
    lines, keyword = [line.rstrip() for line in text.split("\n")], re.compile("|".join(DENYLIST), re.IGNORECASE)
    whole, with_keyword = "\n".join(lines), "\n".join(line for line in lines if keyword.search(line))

    def may_find(detector: Any) -> bool:
        if isinstance(detector, RegexBasedDetector):
            return any(_over_lines(one).search(whole) for one in detector.denylist)
        return any(_over_lines(one).search(with_keyword) for one in REGEX_BY_FILETYPE[kind])  # it is KeywordDetector

    return [name for name, detector in _detectors().items() if may_find(detector)]


@cache
def _over_lines(expression: re.Pattern[str]) -> re.Pattern[str]:
    return re.compile(expression.pattern, expression.flags | re.MULTILINE)


def _lines(path: Path) -> list[str]:
    from detect_secrets.core.scan import scan_file
    from detect_secrets.filters.heuristic import is_non_text_file as is_ignored  # by its ending

    if path.is_symlink() or not path.is_file():
        return []
    text = _decoded(path)
    if text is None and not is_ignored(path.name):
        if not (names := _to_look_with(path)):
            return []
        with _using(names):
            found = {(secret.line_number, secret.type) for secret in scan_file(str(path))}
        return [f"line {line}: {kind}" for line, kind in sorted(found)]
    suffix = ".txt" if is_ignored(path.name) else path.suffix  # which says how lines are read
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=suffix) as copy, _using(_detectors()):
        copy.write(path.read_text("utf-8") if text is None else text)
        copy.flush()
        return [f"its text: {kind}" for kind in sorted({secret.type for secret in scan_file(copy.name)})]


def _decoded(path: Path) -> str | None:
    """The text in a file that is no text in UTF-8; None where it is."""
    with path.open("rb") as file:
        data = file.read(_MOST_BINARY_BYTES)
    if b"\0" in data:
        return "\n".join(found.replace(b"\0", b"").decode("ascii") for found in _TEXT_IN_BINARY.findall(data))
    try:
        with path.open(encoding="utf-8") as text:
            while text.read(_CHUNK):
                pass
    except UnicodeDecodeError:
        return path.read_text("latin-1")
    return None
