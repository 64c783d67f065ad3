"""What a decision costs, for `docs/serving.md`, drawn from the kept results: `python benchmarks/serving_page.py`.

Its tables stand between `<!-- begin: measured -->` and `<!-- end: measured -->`; nothing between them is typed in.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from page import filled, table

PROJECT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = PROJECT / "docs" / "serving.md", PROJECT / "benchmarks" / "results"
NAMES = {"bare": "bare handler", "loomrl": "LoomRL, everything on", "loomrl_alone": "LoomRL, no challenger"}
NAMES |= {"mlflow": "`mlflow models serve`", "mlserver": "MLServer"}


def rendered(page: str) -> str:
    """The page with its tables drawn anew."""
    serving, shadow = (json.loads((RESULTS / name).read_text()) for name in ("serving.json", "serving_shadow.json"))
    text = "\n\n".join([_costs(serving["rounds"]), _targets(serving), _shadows(shadow)])
    return filled(page, "measured", text)


def _costs(rounds: list[dict[str, Any]]) -> str:
    """What each server costs, medians of all rounds."""
    rows = []
    for server, name in NAMES.items():
        figures = [_figure(rounds, server, one, "cpu_us_per_request", "{:.0f}") for one in ("decide", "infer", "batch")]
        rates = [_figure(rounds, server, one, "decisions_per_second", "{:,.0f}") for one in ("batch", "binary")]
        rows.append([name, *figures, *rates])
    heads = ["server", "CPU µs per `/decide`", "per V2 request", "per V2 request of 64"]
    heads += ["decisions/s at 64", "the same, binary tensors"]
    return table(heads, rows)


def _figure(rounds: list[dict[str, Any]], server: str, question: str, name: str, shown: str) -> str:
    found = [one[server][question][name] for one in rounds if question in one[server]]
    return shown.format(median(found)) if found else ""


def _targets(serving: Mapping[str, Any]) -> str:
    """The ratios within each round, and what was asked for."""
    rows = [
        [
            target,
            f"**{row['median']:.2f}**",
            f"{min(row['ratios']):.2f} to {max(row['ratios']):.2f}",
            f"{row['least']:.3g}",
        ]
        for target, row in serving["targets"].items()
    ]
    rounds, load = len(serving["rounds"]), serving["machine"]["load"]
    foot = f"Ratios within a round, {rounds} rounds on {serving['machine']['cores']} cores; load at the end {load}."
    return table(["target", "median", "rounds", "wanted"], rows) + f"\n\n{foot}"


def _shadows(shadow: Mapping[str, Any]) -> str:
    """What a challenger with a fault costs the champion's agents."""
    alone, pairs = shadow["without_challenger"], shadow["settings"]["pairs"]
    rows = [_shadow_row("none", alone)]
    rows += [_shadow_row(fault, shadow[fault]) for fault in ("crash", "hang", "nan", "slow")]
    spread = " to ".join(f"{end:.2f}" for end in alone["spread"])
    foot = (
        f"{pairs} interleaved pairs each; half of the pairs without a challenger lie within {spread}. `slow` is "
        f"{shadow['slowdown_of_slow']} times as slow as the champion. Load at the begin {shadow['machine']['load']}."
    )
    heads = ["challenger", "p99 with it / without", "actions compared", "changed", "CPU µs per decision"]
    return table(heads, rows) + f"\n\n{foot}"


def _shadow_row(fault: str, found: Mapping[str, Any]) -> list[str]:
    counts = [f"{found[name]:,}" for name in ("num_actions", "num_changed")]
    return [fault, f"**{found['median_p99_ratio']:.2f}**", *counts, f"{found['server_cpu_us_per_request']:.0f}"]


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
