"""Learning curves as data and as a picture, both the same bytes for the same run."""

from pathlib import Path

from loomrl.system.files import atomic_path, write_json
from loomrl.types import Json

CURVES = "curves.json"
PICTURE = "learning_curve.png"
_MARGINS = {"left": 0.085, "right": 0.985, "bottom": 0.14, "top": 0.91, "wspace": 0.16}  # a layout takes a drawing


def write_curves(updates: list[Json], validations: list[Json], folder: Path) -> None:
    """Write `curves.json` (rows of updates and validations, each with its `step`) and the picture `learning_curve.png`
    to `folder`, which is made where it does not exist.

    Raises:
        ArtifactError: when they cannot be written.
    """
    write_json(folder / CURVES, {"updates": updates, "validations": validations})
    _draw(updates, validations, folder / PICTURE)


def _draw(updates: list[Json], validations: list[Json], path: Path) -> None:
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context("default"):  # whatever the user's matplotlibrc says
        figure = Figure(figsize=(9, 3.6), dpi=110)
        left, right = figure.subplots(1, 2, gridspec_kw=_MARGINS)
        trained = [row for row in updates if "episode_return" in row]
        left.plot(*_series(trained, "episode_return"), color="#9aa5b1", label="exploring")
        left.plot(*_series(validations, "mean_return"), color="#1f5fa8", marker="o", markersize=3, label="greedy")
        title = "Return" if trained or not updates else "Return (no episode of training ended)"
        left.set(xlabel="environment steps", ylabel="mean episode return", title=title)
        left.legend()
        right.plot(*_series(updates, "entropy"), color="#b3541e", label="entropy [nats]")
        right.plot(*_series(updates, "explained_variance"), color="#2d7d46", label="explained variance")
        right.set(xlabel="environment steps", title="Learning", ylim=(-1.05, None))
        right.legend()
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format="png", metadata={"Software": None})


def _series(rows: list[Json], name: str) -> tuple[list[float], list[float]]:
    present = [row for row in rows if name in row]
    return [row["step"] for row in present], [row[name] for row in present]
