"""A home of LoomRL for one simulation."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def temporary_home() -> Iterator[Path]:
    """An empty folder that is `LOOMRL_HOME` meanwhile, and then gone."""
    before = os.environ.get("LOOMRL_HOME")
    with tempfile.TemporaryDirectory(prefix="loomrl-calibration-") as folder:
        os.environ["LOOMRL_HOME"] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ["LOOMRL_HOME"]
            if before is not None:
                os.environ["LOOMRL_HOME"] = before
