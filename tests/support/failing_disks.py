"""What stands in place of a function that needs the disk, where that has no room or fails."""

import errno
import os
from typing import NoReturn

from loomrl.errors import ArtifactError


def full(*_: object, **__: object) -> NoReturn:
    """As LoomRL says it."""
    raise ArtifactError("no space left")


def failing(*_: object, **__: object) -> NoReturn:
    """As the system says it."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))
