"""What is written here for an environment: in a file that is named like the module of its entry point."""

import importlib
from pathlib import Path
from typing import Protocol, TypeVar


class _ForEnvironment(Protocol):
    @property
    def entry_point(self) -> str: ...


T = TypeVar("T", bound=_ForEnvironment)


def written_for(entry_point: str, folder: str, kind: type[T]) -> T | None:
    """The object of type `kind` for this entry point, from the file of `folder` (`classic`, `robots`, `tensors`) that
    is named like the entry point's module; None where there is no such file, or none for this entry point in it."""
    name = entry_point.partition(":")[0].rpartition(".")[2]
    if name == "base" or not (Path(__file__).parent / folder / f"{name}.py").is_file():
        return None
    found = vars(importlib.import_module(f"{__package__}.{folder}.{name}")).values()
    return next((one for one in found if isinstance(one, kind) and one.entry_point == entry_point), None)
