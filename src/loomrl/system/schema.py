"""The two kinds of typed data: `Section` (read from configs) and `Document` (written by stages)."""

import difflib
from collections.abc import Mapping, Sequence
from datetime import date
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Protocol, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from loomrl.errors import ArtifactError, ConfigError
from loomrl.system.files import canonical_json, read_json, write_atomic

_Read = TypeVar("_Read", bound="Section")


class Section(BaseModel):
    """A frozen part of a config. Unknown keys raise pydantic's `ValidationError`, a `ValueError`; so do values of
    another type and values that are not finite.

    Nothing is guessed: `"7"` and `true` are no integers, `"yes"` is no boolean. An integer may stand for a float, and
    what JSON has no word for is read from what stands for it there: a path, a date or a member of an enum from its
    text, a tuple or a set from a list.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True, defer_build=True)

    @field_validator("*", mode="before")
    @classmethod
    def _from_json(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None, "a field validator knows its field"
        kinds = _kinds(cls.model_fields[info.field_name].annotation)
        if isinstance(value, list):
            return next((kind(value) for kind in kinds if kind in (list, tuple, set, frozenset)), value)
        if not isinstance(value, str) or str in kinds:
            return value
        if date in kinds:
            return date.fromisoformat(value)
        texts = Enum if info.mode == "json" else (Enum, Path)  # from JSON, pydantic itself makes a path of its text
        return next((kind(value) for kind in kinds if isinstance(kind, type) and issubclass(kind, texts)), value)


class ArgumentSection(Section):
    """A section whose keys a caller gives as arguments of the class, or of what `CALLED` names.

    Raises:
        ConfigError: naming the key, what was found and what is allowed.
    """

    CALLED: ClassVar[str] = ""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explain(error, type(self), f"{self.CALLED or type(self).__name__}.")) from error


class _Named(Protocol):
    @property
    def name(self) -> str: ...


def demand_distinct(named: Sequence[_Named], what: str) -> None:
    """Refuse two entries of one name in a list of a config; `what` is what the error calls them.

    Raises:
        ValueError: where two have one name.
    """
    names = [one.name for one in named]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two {what} have the same name: {', '.join(twice)}")


class Document(BaseModel):
    """A frozen JSON document that crosses a stage boundary, canonical to the byte. Making one of unknown keys, or of
    values that do not fit, raises pydantic's `ValidationError`, a `ValueError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings", defer_build=True)

    def to_json(self) -> dict[str, Any]:
        """The document as plain JSON values: a mapping of texts, numbers, lists and the like; floats that are not
        finite stay."""
        return self.model_dump(mode="json")

    def to_bytes(self) -> bytes:
        """The document as canonical JSON: sorted keys, UTF-8, no insignificant whitespace, final newline.

        Raises:
            ValueError: when it holds a float that is not finite.
        """
        return canonical_json(self.to_json())

    def write(self, path: Path) -> None:
        """Write the document as canonical JSON; a reader sees the former file or the new one, never a part.

        Raises:
            ArtifactError: when it cannot be written; the former file stays.
            ValueError: when it holds a float that is not finite.
        """
        write_atomic(path, self.to_bytes())

    @classmethod
    def read(cls, path: Path) -> Self:
        """The document in a file, validated.

        Raises:
            ArtifactError: when the file is missing or holds no such document; it names the file and the key.
        """
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            why = first_problem(error, "(top level)")
            raise ArtifactError(
                f"{path} is not a valid {cls.__name__}: {why}; run the stage that wrote it again"
            ) from error


def read_section(section: type[_Read], values: Mapping[str, Any], place: str) -> _Read:
    """A checked config of the class `section`, made of `values`.

    Raises:
        ConfigError: naming `place`, the key, what was found and what is allowed.
    """
    try:
        return section.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(explain(error, section, f"{place}.")) from error


def first_problem(error: ValidationError, whole: str = "") -> str:
    """What was found wrong first, as "KEY: WHY", keys of sections with dots between them. Where it is about no key,
    `whole` stands in its place; empty, the reason stands alone.
    """
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"])) or whole
    return f"{place}: {first['msg']}" if place else first["msg"]


def explain(error: ValidationError, section: type[Section], place: str, whole: str = "") -> str:
    """A line for each thing wrong with the values of a section: its key behind `place`, what was found and is allowed.

    `place` ends in "." or ": " before keys; `whole` stands for the key of what is wrong of the section as a whole.
    """
    caused = [one for one in error.errors() if one["type"] != "default_factory_not_called"]  # by another one listed
    keys = [".".join(map(str, detail["loc"])) or whole for detail in caused]
    named = [f"{place}{key}" if key else place.rstrip(".: ") for key in keys]
    return "\n".join(f"{name}: {_why(detail, section)}" for name, detail in zip(named, caused, strict=True))


def _why(detail: ErrorDetails, section: type[Section]) -> str:
    if detail["type"] == "extra_forbidden":
        allowed = _keys_at(section, detail["loc"][:-1])
        near = difflib.get_close_matches(str(detail["loc"][-1]), allowed, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"unknown key; {hint}allowed: {', '.join(allowed)}"
    if detail["type"] == "missing":
        return "missing; this key is required"
    if detail["type"] == "value_error":
        return detail["msg"].removeprefix("Value error, ")
    is_bare = detail["type"] == "string_type" and isinstance(detail["input"], bool | int | float)
    hint = "; put quotes around it" if is_bare else ""  # YAML reads bare numbers and truth values as such
    return f"{detail['msg']}, found {detail['input']!r}{hint}"


def _keys_at(section: Any, location: tuple[int | str, ...]) -> list[str]:
    for part in location:
        if part not in section.model_fields:  # a place in a list, or a key of a mapping
            continue
        annotation = section.model_fields[part].annotation
        arguments = [item for item in getattr(annotation, "__args__", ()) if hasattr(item, "model_fields")]
        section = arguments[0] if arguments else annotation
    return sorted(section.model_fields)


def _kinds(annotation: Any) -> list[Any]:
    """The types a value may have: members of a union one by one, containers without what they contain."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [kind for member in get_args(annotation) for kind in _kinds(member)]
    return [origin or annotation]
