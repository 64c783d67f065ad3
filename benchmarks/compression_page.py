"""Bytes against return, for `docs/scaling.md`, drawn from the kept results: `python benchmarks/compression_page.py`.

Its tables stand between `<!-- begin: compression -->` and `<!-- end: compression -->`; nothing there is typed in.
"""

import json
from pathlib import Path
from typing import Any

from page import filled, table

PROJECT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = PROJECT / "docs" / "scaling.md", PROJECT / "benchmarks" / "results" / "compression.json"
PICTURE = PROJECT / "docs" / "images" / "bench_compression.png"
TASKS = {"cartpole": "CartPole-v1, 100,000 steps", "halfcheetah": "HalfCheetah-v5, 300,000 steps"}
NAMES = {
    "one_learner": "one learner",
    "every_step": "every gradient joined",
    "every_update": "once an update",
    "every_epoch_int8": "once an epoch, `int8`",
    "every_epoch_int8_momentum": "once an epoch, `int8`, outer momentum 0.5",
    "every_update_int8": "once an update, `int8`",
    "every_update_int8_momentum": "once an update, `int8`, outer momentum 0.5",
    "every_update_int8_outer": "once an update, `int8`, outer rate 1.4",
    "every_update_powersgd": "once an update, `powersgd`",
    "every_update_top_k": "once an update, `top_k` 1 %",
    "every_5_updates_int8": "every 5 updates, `int8`",
    "every_5_updates_int8_momentum": "every 5 updates, `int8`, outer momentum 0.5",
}
MEASURES = {"final_return": "return of the last policy", "training_return": "mean return while learning"}
Figures = dict[str, Any]


def rendered(page: str) -> str:
    """The page with its tables drawn anew."""
    figures = json.loads(RESULTS.read_text())["figures"]
    text = "\n\n".join(f"{title}:\n\n{_table(figures[task])}" for task, title in TASKS.items())
    return filled(page, "compression", text)


def _table(figures: Figures) -> str:
    """A row for each setting."""
    heads = ["parameters become one", "bytes an update", "times fewer", "seeds", *MEASURES.values()]
    heads.append("difference to every gradient joined")
    return table(heads, [_row(title, figures[name]) for name, title in NAMES.items() if name in figures])


def _row(name: str, figures: Figures) -> list[str]:
    fewer, difference = figures.get("times_fewer"), figures["final_return_difference"]
    return [
        name,
        f"{figures['bytes_per_update']:,.0f}",
        f"{fewer:,.0f}" if fewer else "",
        str(figures["seeds"]),
        *(_shown(figures[measure]) for measure in MEASURES),
        "" if fewer == 1.0 else _shown(difference, "+"),
    ]


def _shown(interval: dict[str, float], sign: str = "") -> str:
    low, estimate, high = (format(interval[end] + 0.0, f"{sign},.0f") for end in ("low", "estimate", "high"))
    return f"{estimate} ({low} to {high})"


def draw() -> None:
    """Returns with their intervals over the bytes of an update; a band is one learner's interval."""
    from matplotlib import colormaps, style
    from matplotlib.figure import Figure as Drawing

    figures = json.loads(RESULTS.read_text())["figures"]
    colors = dict(zip(NAMES, colormaps["tab20"].colors, strict=False))
    with style.context("default"):  # whatever the user's matplotlibrc says
        drawing = Drawing(figsize=(9, 6), dpi=110, layout="constrained")
        grid = drawing.subplots(len(MEASURES), len(TASKS), sharex="col", squeeze=False)
        for column, (task, title) in enumerate(TASKS.items()):
            for row, (measure, label) in enumerate(MEASURES.items()):
                _panel(grid[row][column], figures[task], measure, colors)
                grid[row][column].set_ylabel(label if column == 0 else "")
            grid[0][column].set_title(title, fontsize=10)
            grid[-1][column].set_xlabel("bytes that a learner sends in an update")
        handles, labels = grid[0][0].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
        drawing.savefig(PICTURE, format="png", metadata={"Software": None})


def _panel(axes: Any, figures: dict[str, Figures], measure: str, colors: dict[str, Any]) -> None:
    for name in (name for name in NAMES if name in figures):
        one, interval, label = figures[name], figures[name][measure], NAMES[name].replace("`", "")
        if not one["bytes_per_update"]:
            axes.axhspan(interval["low"], interval["high"], color="#cccccc", alpha=0.6, label=label)
            continue
        ends = [[interval["estimate"] - interval["low"]], [interval["high"] - interval["estimate"]]]
        axes.errorbar(
            one["bytes_per_update"], interval["estimate"], ends, fmt="o", color=colors[name], capsize=3, label=label
        )
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
    draw()
