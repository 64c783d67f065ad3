"""Detectors of `detect-secrets`, which loads this file: names that its own list of keywords lacks."""

import re
from pathlib import Path
from typing import Any

from detect_secrets.core.potential_secret import PotentialSecret
from detect_secrets.plugins.base import RegexBasedDetector

_OF_CODE = re.compile(r"\.(py|pyi|js|ts|c|h|cpp|hpp|rs|go|java|sh|md|rst|html|css|svg|sql|ipynb)", re.IGNORECASE)
_NAME = r"(?:^|[\s{,(\[\"'])[\w.-]*(?:token|pass|passphrase|passcode|credential)[\"']?"
_VALUE = r"[\"']?([^\s\"'`,;{}()\[\]<>$]{6,})[\"']?"
_VARIABLE = r"(?<![A-Za-z0-9])[A-Z][A-Z0-9_]*(?:TOKEN|PASS|PASSWORD|SECRET|CREDENTIAL|AUTH_STRING|DATA_KEYS)"
_LITERAL = r"((?=[^\s\"'`]*[0-9])[^\s\"'`,;{}()\[\]<>$]{12,})"


class OtherKeyword(RegexBasedDetector):
    """What is assigned to a name that ends with `token`, `pass` or the like, in files of data and settings alone: in
    code, a token is often a word."""

    secret_type = "Other Secret Keyword"  # pragma: allowlist secret
    denylist = (re.compile(rf"{_NAME}\s*(?::|=)\s*{_VALUE}\s*(?:$|[,;}}\]#])", re.IGNORECASE),)

    def analyze_line(
        self, filename: str, line: str, line_number: int = 0, context: Any = None, **given: Any
    ) -> set[PotentialSecret]:
        """The secrets that are assigned in a line; none for a file of code, as its name's ending says."""
        if _OF_CODE.fullmatch(Path(filename).suffix):
            return set()
        return super().analyze_line(filename, line, line_number, context, **given)


class EnvironmentSecret(RegexBasedDetector):
    """What is assigned to a name in capitals, as variables of the environment have, or sent as a bearer, and has a
    digit: in code, too."""

    secret_type = "Secret of the Environment"  # pragma: allowlist secret
    denylist = (
        re.compile(rf"{_VARIABLE}[\"']?\]?\s*(?::|=)\s*(?:[\"']{_LITERAL}[\"']|{_LITERAL}\s*$)"),
        re.compile(r"\bBearer ((?=[\w.~+/-]*[0-9])[\w.~+/-]{16,}=*)"),
    )
