"""The learning curves' picture is the same bytes wherever it is drawn."""

import os
import subprocess
import sys
from pathlib import Path

CURVES = """
import sys
from pathlib import Path
from loomrl.training.curves import write_curves
updates = [{"step": 10 * k, "episode_return": k, "entropy": 1 / k, "explained_variance": 0.5} for k in (1, 2, 3)]
write_curves(updates, [{"step": 30, "mean_return": 2.5}], Path(sys.argv[1]))
"""


def drawn(folder: Path, settings: str) -> bytes:
    folder.mkdir()
    (folder / "matplotlibrc").write_text(settings)
    variables = os.environ | {"MATPLOTLIBRC": str(folder / "matplotlibrc")}
    subprocess.run([sys.executable, "-c", CURVES, str(folder)], env=variables, check=True)
    return (folder / "learning_curve.png").read_bytes()


def test_the_users_matplotlib_settings_change_nothing(tmp_path: Path) -> None:
    settings = "axes.grid: True\nfont.size: 20\nlines.linewidth: 5\nsavefig.dpi: 50\n"
    assert drawn(tmp_path / "theirs", settings) == drawn(tmp_path / "plain", "")
