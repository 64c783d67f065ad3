"""The two kinds of typed data: `Section` (read from configs) and `Document` (written by stages)."""

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from loomrl.errors import ArtifactError
from loomrl.files import canonical_json, read_json, write_atomic


class Section(BaseModel):
    """A frozen part of a config. Unknown keys raise; so do values that are not finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=False)


class Document(BaseModel):
    """A frozen JSON document that crosses a stage boundary, canonical to the byte."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    def to_json(self) -> dict[str, Any]:
        """The document as plain JSON values."""
        return self.model_dump(mode="json")

    def to_bytes(self) -> bytes:
        """Canonical JSON: sorted keys, UTF-8, no insignificant whitespace, final newline."""
        return canonical_json(self.to_json())

    def write(self, path: Path) -> None:
        """Write canonical JSON atomically."""
        write_atomic(path, self.to_bytes())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and validate; raises `ArtifactError` naming the file and the key."""
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "(top level)"
            raise ArtifactError(
                f"{path} is not a valid {cls.__name__}: {place}: {first['msg']}; run the stage that wrote it again"
            ) from error
