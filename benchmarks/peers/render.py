"""From figures to what a reader sees: the tables of `docs/benchmarks.md` and the pictures beside it.

A table stands between `<!-- table: CASE -->` and `<!-- end -->`; what is between them is replaced.
"""

import json
import re
from typing import Any

import numpy as np

from loomrl.statistics.intervals import interquartile_mean
from peers.execute import PROJECT
from peers.summary import Document

PAGE = PROJECT / "docs" / "benchmarks.md"
IMAGES = PROJECT / "docs" / "images"
_PLACE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_COLORS = {"loomrl": "#1f5fa8", "sb3": "#b3541e", "sbx": "#2d7d46", "sb3-same": "#e0a03c", "sb3-cleanrl": "#8c6bb1"}
NAMES = {
    "loomrl": "LoomRL",
    "loomrl-same": "LoomRL, stable-baselines3's settings",
    "loomrl-every-step": "LoomRL, every step",
    "sb3": "stable-baselines3",
    "sb3-same": "stable-baselines3, LoomRL's settings",
    "sb3-cleanrl": "stable-baselines3, CleanRL's settings",
    "sb3-64x128": "stable-baselines3, 64 x 128",
    "sb3-2-threads": "stable-baselines3, torch on two threads",
    "sb3-medium": "stable-baselines3, medium precision",
    "sbx": "SBX (JAX)",
    "stage": "LoomRL, stage of the pipeline",
}


def rendered(page: str, documents: dict[str, Document]) -> str:
    """The page with every table drawn from the documents."""

    def place(match: re.Match[str]) -> str:
        head, name, end = match.groups()
        document = documents.get(name)
        return f"{head}\n{table(document) if document else 'Not measured yet.'}\n\n{end}"

    return _PLACE.sub(place, page)


def table(document: Document) -> str:
    """One case as a Markdown table."""
    row = _ROWS[document["kind"]]
    rows = [row(name, one) for name, one in document["trainers"].items()]
    heads = list(rows[0])
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(row.values()) + " |" for row in rows]
    return "\n".join([*lines, "", _foot(document)])


def _learning_row(name: str, figures: Document) -> dict[str, str]:
    mean, training = figures["interquartile_mean"], figures["training_returns"]
    return {
        "trainer": NAMES[name],
        "settings": figures["source"],
        "interquartile mean": f"**{mean['estimate']:,.0f}**",
        "95 % interval": f"{mean['low']:,.0f} to {mean['high']:,.0f}",
        "last three": f"{interquartile_mean(figures['late_returns']):,.0f}",
        "each seed": ", ".join(f"{one:,.0f}" for one in figures["returns"]),
        "exploring": f"{np.mean(training):,.0f}" if None not in training else "",
    }


def _solve_row(name: str, figures: Document) -> dict[str, str]:
    steps = [one for one in figures["steps_to_solve"] if one]
    return {
        "trainer": NAMES[name],
        "settings": figures["source"],
        "solved": f"{figures['num_solved']} of {figures['num_runs']}",
        "seconds": _spread(figures, "{:.3g}"),
        "steps": f"{np.median(steps):,.0f}" if steps else "",
        "times faster": _ratio(figures),
    }


def _speed_row(name: str, figures: Document) -> dict[str, str]:
    return {
        "trainer": NAMES[name],
        "settings": figures["source"],
        "steps/s": _spread(figures, "{:,.0f}"),
        "× stable-baselines3": _ratio(figures),
    }


def _start_row(name: str, figures: Document) -> dict[str, str]:
    return {
        "trainer": NAMES[name],
        "settings": figures["source"],
        "seconds": _spread(figures, "{:.2f}"),
        "times faster": _ratio(figures),
    }


def _overhead_row(_name: str, figures: Document) -> dict[str, str]:
    return {
        "what": figures["source"],
        "start, seconds": _spread(figures["start_seconds"], "{:.2f}"),
        "collecting, updating, validating": _spread(figures["loop_seconds"], "{:.1f}"),
        "the rest of training's process": _spread(figures["added_seconds"], "{:.2f}"),
        "the environment's process": _spread(figures["snapshot_seconds"], "{:.2f}"),
        "added": _spread(figures, "{:.1f} %"),
    }


_ROWS = {
    "learning": _learning_row,
    "solve": _solve_row,
    "speed": _speed_row,
    "start": _start_row,
    "overhead": _overhead_row,
}


def _spread(figures: Document, form: str) -> str:
    if figures["median"] is None:
        return "never"
    middle, low, high = (form.format(figures[key]) for key in ("median", "min", "max"))
    return f"**{middle}** ({low} to {high})"


def _ratio(figures: Document) -> str:
    ratio: Document = figures.get("ratio", {})
    return f"**{ratio['median']:.1f}** ({ratio['min']:.1f} to {ratio['max']:.1f})" if ratio.get("median") else ""


def _foot(document: Document) -> str:
    machine, trainers = document["machine"], document["trainers"].values()
    runs = max(len(one["seeds"]) for one in trainers)
    versions: dict[str, str] = {}
    for one in trainers:
        versions |= one["versions"]
    threads = f"of which {document['threads']} used"
    load = machine["load"]
    where = f"{machine['cores']} cores, {machine['processor']}, {threads}, Python {machine['python']}"
    kind = "seeds" if document["kind"] in ("learning", "solve") else "rounds"
    packages = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    words = [f"{runs} {kind}; {where}; load {load['min']} to {load['max']}; {packages}."]
    if document["goal"]:
        words.append(f"Goal: {document['goal']}.")
    return " ".join(words)


def draw(document: Document) -> None:
    """The learning curves of a case, or its speeds, as `docs/images/bench_CASE.png`."""
    from matplotlib import style

    with style.context("default"):  # whatever the user's matplotlibrc says
        figure = _curves(document) if document["kind"] == "learning" else _bars(document)
        path = IMAGES / f"bench_{document['case']}.png"
        figure.savefig(path, format="png", metadata={"Software": None})


def _figure(document: Document) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.set_title(document["title"], fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _curves(document: Document) -> Any:
    """Interquartile mean over seeds, and the band from the worst to the best seed."""
    figure, axes = _figure(document)
    for name, one in document["trainers"].items():
        steps, values = _aligned(one["curve"])
        ordered = np.sort(values, axis=0)
        cut = len(ordered) // 4
        middle = ordered[cut : len(ordered) - cut].mean(0)
        color = _COLORS.get(name, "#555555")
        axes.plot(steps, middle, color=color, label=NAMES[name])
        axes.fill_between(steps, ordered[0], ordered[-1], color=color, alpha=0.15, linewidth=0)
    axes.set(xlabel="environment steps", ylabel="greedy return")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _aligned(curves: list[list[list[float]]]) -> tuple[np.ndarray, np.ndarray]:
    """Each seed's curve on the points of the first one, all as long as the shortest."""
    length = min(len(curve) for curve in curves)
    steps = np.array([row[0] for row in curves[0][:length]])
    return steps, np.array([[row[1] for row in curve[:length]] for curve in curves])


def _bars(document: Document) -> Any:
    """Medians, with what was least and most."""
    figure, axes = _figure(document)
    shown = {name: one for name, one in document["trainers"].items() if one["median"] is not None}
    middle = np.array([one["median"] for one in shown.values()])
    spread = np.abs(np.array([[one["min"], one["max"]] for one in shown.values()]).T - middle)
    colors = [_COLORS.get(name, "#8a94a0") for name in shown]
    axes.barh([NAMES[name] for name in shown], middle, xerr=spread, color=colors, height=0.55)
    axes.set(xlabel=next(iter(shown.values()))["unit"], xscale="log")
    axes.invert_yaxis()
    return figure


def as_json(document: Document) -> str:
    """The text of a result file."""
    return json.dumps(document, indent=1, sort_keys=True) + "\n"
