"""A detector of `detect-secrets`, which loads this file: names that its own list of keywords lacks.

In code a token is often a word: only what is called like a variable of the environment, and has a digit, is looked at.
"""

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
_IN_CODE = re.compile(rf"{_VARIABLE}[\"']?\]?\s*(?::|=)\s*(?:[\"']{_LITERAL}[\"']|{_LITERAL}\s*$)")
_BEARER = re.compile(r"\bBearer ((?=[\w.~+/-]*[0-9])[\w.~+/-]{16,}=*)")


class OtherKeyword(RegexBasedDetector):
    """What is assigned to a name that ends with `token`, `pass` or the like."""

    secret_type = "Other Secret Keyword"  # pragma: allowlist secret
    denylist = (re.compile(rf"{_NAME}\s*(?::|=)\s*{_VALUE}\s*(?:$|[,;}}\]#])", re.IGNORECASE), _IN_CODE, _BEARER)

    def analyze_line(
        self, filename: str, line: str, line_number: int = 0, context: Any = None, **given: Any
    ) -> set[PotentialSecret]:
        """The secrets of a line."""
        known = self.denylist[1:] if _OF_CODE.fullmatch(Path(filename).suffix) else self.denylist
        found = (value for regex in known for match in regex.finditer(line) for value in match.groups() if value)
        return {PotentialSecret(self.secret_type, filename, value, line_number) for value in found}
