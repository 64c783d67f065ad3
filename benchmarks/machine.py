"""The machine that figures were measured on, as results name it."""

import platform

from loomrl.system.processors import num_processors
from loomrl.system.threads import processor_family


def measured_on() -> dict[str, int | str]:
    """Cores that may be used, the processor's family, and Python's version."""
    return {"cores": num_processors(), "processor": processor_family(), "python": platform.python_version()}
