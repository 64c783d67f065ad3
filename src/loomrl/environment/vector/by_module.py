"""What is written here for an environment: in a file that is named like the module of its entry point."""

import importlib
from pathlib import Path
from types import ModuleType


def module_like(entry_point: str, folder: str) -> ModuleType | None:
    """The module in `folder` (`classic`, `robots`, `tensors`) that is named like an entry point's; None without one."""
    name = entry_point.partition(":")[0].rpartition(".")[2]
    if name == "base" or not (Path(__file__).parent / folder / f"{name}.py").is_file():
        return None
    return importlib.import_module(f"{__package__}.{folder}.{name}")
