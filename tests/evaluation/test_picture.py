"""The evaluation's picture is the same bytes wherever it is drawn."""

import os
import subprocess
import sys
from pathlib import Path

RETURNS = """
import sys
from pathlib import Path
import numpy as np
from loomrl.evaluation.picture import draw_returns
from loomrl.types import Interval
returns = np.arange(20.0)
interval = Interval(estimate=9.0, low=8.0, high=10.0, confidence=0.95, method="bootstrap")
draw_returns(Path(sys.argv[1]), returns, np.arange(20), 5.0, interval)
"""


def drawn(folder: Path, settings: str) -> bytes:
    folder.mkdir()
    (folder / "matplotlibrc").write_text(settings)
    variables = os.environ | {"MATPLOTLIBRC": str(folder / "matplotlibrc")}
    subprocess.run([sys.executable, "-c", RETURNS, str(folder / "returns.png")], env=variables, check=True)
    return (folder / "returns.png").read_bytes()


def test_the_users_matplotlib_settings_change_nothing(tmp_path: Path) -> None:
    settings = "axes.grid: True\naxes.labelsize: 20\nxtick.bottom: False\nsavefig.dpi: 50\n"
    assert drawn(tmp_path / "theirs", settings) == drawn(tmp_path / "plain", "")
