"""`docs/calibration.md`, between its comments, and one picture for each topic, drawn from the kept results."""

from pathlib import Path

from benchmarks.calibration.results import RESULTS, ROOT, Found, found
from benchmarks.calibration.topic import Kind, Topic, topics
from benchmarks.page import filled, table

PAGE, IMAGES = ROOT / "docs" / "calibration.md", ROOT / "docs" / "images"
_KINDS: dict[Kind, str] = {"false alarms": "at most", "coverage": "at least", "power": "at least"}
_COLORS: dict[Kind, str] = {"false alarms": "#c44e52", "coverage": "#4c72b0", "power": "#55a868"}


def rendered(page: str, folder: Path = RESULTS) -> str:
    """The page with all topics drawn anew."""
    rows = {topic: found(topic, folder) for topic in topics().values()}
    every = [one for some in rows.values() for one in some]
    met = sum(one.is_met for one in every)
    num_settings = sum(len(topic.settings) for topic in rows)
    idle = sum(one.is_complete and not one.num_claimed for one in every)
    head = (
        f"**{met} of {len(every)} stated rates are met**, in {num_settings} settings of {len(rows)} topics; in {idle} "
        "nothing was claimed, which shows nothing."
    )
    return filled(page, "topics", "\n\n".join([head, *(_section(topic, some) for topic, some in rows.items())]))


def _section(topic: Topic, rows: list[Found]) -> str:
    title, picture = topic.name.replace("_", " "), f"images/calibration_{topic.name}.png"
    heads = ["setting", "what", "stated", "measured", "claimed in", "streams", "met"]
    lines = [f"### {title.capitalize()}", topic.text, table(heads, [_row(one) for one in rows])]
    return "\n\n".join([*lines, f"![{title}: stated and measured rates]({picture})"])


def _row(one: Found) -> list[str]:
    measured = f"{one.num_true / one.num_claimed:.1%}" if one.num_claimed else "nothing claimed"
    stated = f"{_KINDS[one.rate.kind]} {one.rate.stated:.1%}"
    what = f"{one.rate.kind}: {one.rate.outcome}"
    met = "**no**" if one.is_rejected else "yes" if one.is_met else "-"
    if not one.is_complete and not one.is_rejected:
        met = f"unfinished: {one.setting.num_streams:,} wanted"
    return [one.setting.name, what, stated, measured, f"{one.num_claimed:,}", f"{one.num_streams:,}", met]


def draw(topic: Topic, folder: Path = IMAGES) -> None:
    """Every rate with its exact 99 % interval (Clopper and Pearson, 1934); a tick marks what is stated."""
    from matplotlib import style
    from matplotlib.figure import Figure
    from scipy.stats import binomtest

    rows = [one for one in found(topic) if one.num_claimed]
    with style.context("default"):  # whatever the user's matplotlibrc says
        drawing = Figure(figsize=(9, 1.2 + 0.26 * len(rows)), dpi=100, layout="constrained")
        axes = drawing.subplots()
        for height, one in enumerate(rows):
            ends = binomtest(one.num_true, one.num_claimed).proportion_ci(0.99)
            color = _COLORS[one.rate.kind]
            axes.plot([ends.low, ends.high], [height, height], color=color, linewidth=2)
            axes.plot(one.num_true / one.num_claimed, height, "o", color=color, markersize=4)
            axes.plot(one.rate.stated, height, "|", color="black", markersize=11, markeredgewidth=1.5)
        axes.set_yticks(range(len(rows)), [f"{one.setting.name}: {one.rate.outcome}" for one in rows], fontsize=7)
        axes.invert_yaxis()
        axes.set_xlim(-0.02, 1.02)
        axes.set_xlabel("share of streams (red: false alarms, blue: coverage, green: power; black: stated)", fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        drawing.savefig(folder / f"calibration_{topic.name}.png", format="png", metadata={"Software": None})
