"""A file of orders: what it holds, with a format number and a digest of all the rest, so that damage is told from news.

A file whose digest is not that of its content is damaged, whatever it says. Of one that is whole, `format` says whether
a newer LoomRL wrote it. Earlier versions wrote neither.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from loomrl.errors import ArtifactError
from loomrl.serving.controls.elapsed import Countdown
from loomrl.serving.controls.orders import is_readable, with_an_end
from loomrl.serving.controls.overrides import Override
from loomrl.storage.audit.reserve import Reserve
from loomrl.storage.loomdb.records import Control
from loomrl.system.files import canonical_json, sha256, write_atomic
from loomrl.system.plain import on_one_line
from loomrl.system.schema import Document

FORMAT = 3  # one more with every key, or kind of order, that the version before could not read
_SINCE = {"lost": 3}  # which keys need which format; a file without them has the one before
DAMAGES = (ValueError, TypeError, LookupError, AttributeError, RecursionError, IsADirectoryError)  # as it is read
_MAX_REASON = 500  # characters of what is wrong with a file
_EARLIER = {"controls", "countdowns", "replaced"}  # the keys that files without a format may have


class NewerFormat(Exception):
    """A newer LoomRL wrote it, and it is whole."""


def sealed(content: Mapping[str, Any]) -> bytes:
    """The content as canonical JSON, with its format and its digest."""
    whole = {**content, "format": max((number for key, number in _SINCE.items() if key in content), default=2)}
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


class SavedControls(Document):
    """What was ordered on this host and is not replaced, what overrides with an end have left, by their ids, and what
    was lost to damage, until LoomDB has told what it knows."""

    controls: list[Control] = []
    countdowns: dict[str, Countdown] = {}
    lost: str | None = None

    @property
    def is_from_before_countdowns(self) -> bool:
        """Whether a LoomRL wrote it that knew of the wall clock alone."""
        return "countdowns" not in self.model_fields_set

    @model_validator(mode="before")
    @classmethod
    def _replaced_apart(cls, found: Any) -> Any:
        """A file that names what was replaced beside the orders, not in them."""
        if isinstance(found, dict) and "replaced" in found:
            found = {**found}
            replaced = found.pop("replaced")
            found["controls"] = [{"replaces": replaced.get(one["name"]), **one} for one in found["controls"]]
        return found

    def sealed(self) -> bytes:
        """As it is kept: with the format, and a digest of the content."""
        return sealed({name: value for name, value in self.to_json().items() if name != "lost" or value is not None})

    def write(self, path: Path) -> None:
        """Write it as it is kept; raises as `Document.write` does."""
        write_atomic(path, self.sealed())

    @classmethod
    def opened(cls, text: bytes) -> tuple[Self, bool]:
        """What `sealed` made, or an earlier version, and whether a digest vouches for it; raises as `opened` does."""
        content, is_sealed = opened(text)
        return cls.model_validate(content), is_sealed


@dataclass(frozen=True)
class Found:
    """What was found where orders are kept: whole, where neither `damage` nor `closed` is set."""

    saved: SavedControls = field(default_factory=SavedControls)
    damage: str | None = None  # what is wrong with it; it is set aside
    closed: str | None = None  # why it is left alone: another LoomRL wrote it, or it cannot be read
    is_unread: bool = False
    is_sealed: bool = False  # a digest vouches for it
    is_there: bool = True

    @property
    def is_newer(self) -> bool:
        """Whether this LoomRL does not know what it says, though it was read."""
        return self.closed is not None and not self.is_unread

    @property
    def is_whole(self) -> bool:
        """Whether all that it was given is known."""
        return self.is_there and self.damage is None and self.closed is None


def found_in(path: Path) -> Found:
    """What a file of orders holds; nothing is raised."""
    try:
        saved, is_sealed = SavedControls.opened(path.read_bytes())
    except FileNotFoundError:
        return Found(is_there=False)
    except NewerFormat as error:
        return Found(closed=f"{path} is left alone, for a newer LoomRL wrote it: {error}; use that one")
    except DAMAGES as error:
        return Found(damage=stated(f"{path} is damaged: {error}"))
    except OSError as error:
        return Found(closed=f"{path} cannot be read: {error.strerror}; check the disk", is_unread=True)
    if saved.is_from_before_countdowns:
        left = {one.id: Countdown.of(_left_by_the_wall_clock(one)) for _, one in with_an_end(saved.controls)}
        saved = saved.model_copy(update={"countdowns": left})
    why = _unreadable(saved)
    return Found(saved, why and stated(f"{path} is damaged: {why}"), is_sealed=is_sealed)


def found_in_reserve(reserve: Reserve) -> Found:
    """What a reserve holds; nothing is raised. It has a digest of its own: another LoomRL wrote what is whole there,
    and cannot be read.
    """
    try:
        text = reserve.read()
        if not text:
            return Found(damage=f"{reserve.path} is damaged" if reserve.has_lost else None)
        saved, _ = SavedControls.opened(text)
        why = _unreadable(saved)
    except ArtifactError as error:
        return Found(closed=str(error), is_unread=True)
    except (NewerFormat, *DAMAGES) as error:
        saved, why = SavedControls(), str(error)
    left_alone = f"{reserve.path} is left alone, for this LoomRL cannot read it: {why}; use a newer one, or remove it"
    return Found(saved, closed=why and stated(left_alone))


def _unreadable(saved: SavedControls) -> str | None:
    """Which of these orders cannot be read; None where all can."""
    unreadable = [one.name for one in saved.controls if not is_readable(one)]
    return f"it holds orders that cannot be read: {', '.join(unreadable)}" if unreadable else None


def _left_by_the_wall_clock(one: Override) -> float:
    """Seconds, of an override with an end; at most its lifetime."""
    return min(max((one.expires or 0.0) - time.time(), 0.0), one.lifetime_seconds or 0.0)


def stated(why: str) -> str:
    """What is wrong with a file, as answers and orders tell it: on one line, and not too long."""
    return on_one_line(why)[:_MAX_REASON]
