"""The form of a file of orders: a format number, and a digest of all the rest, so that damage is told from news.

A file whose digest is not that of its content is damaged, whatever it says. Of one that is whole, `format` says whether
a newer LoomRL wrote it. Earlier versions wrote neither.
"""

import json
from collections.abc import Mapping
from typing import Any

from loomrl.system.files import canonical_json, sha256

FORMAT = 2  # one more with every key, or kind of order, that the version before could not read
_EARLIER = {"controls", "countdowns", "replaced"}  # the keys that files without a format may have


class NewerFormat(Exception):
    """A newer LoomRL wrote it, and it is whole."""


def sealed(content: Mapping[str, Any]) -> bytes:
    """The content as canonical JSON, with its format and its digest."""
    whole = {**content, "format": FORMAT}
    return canonical_json({**whole, "digest": sha256(canonical_json(whole))})


def opened(text: bytes) -> tuple[dict[str, Any], bool]:
    """The content of a file, and whether a digest vouches for it: not in files of earlier versions.

    Raises:
        NewerFormat: for a whole file with a higher format number.
        ValueError, LookupError, RecursionError: for a damaged one.
    """
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    if not found.keys() & {"format", "digest"}:
        if "controls" not in found or found.keys() - _EARLIER:
            raise ValueError("its keys are those of no version")
        return found, False
    if found.pop("digest", None) != sha256(canonical_json(found)):
        raise ValueError("its digest is not that of its content")
    if found["format"] > FORMAT:
        raise NewerFormat(f"its format is {found['format']}, and this LoomRL knows {FORMAT} at most")
    del found["format"]
    return found, True
