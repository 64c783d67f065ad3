"""What learners and rollout workers bring and cost, for `docs/scaling.md`, drawn from the kept results:
`python benchmarks/speed_page.py`.

Its table stands between `<!-- begin: speed -->` and `<!-- end: speed -->`; nothing there is typed in.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from page import filled, table

PROJECT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = PROJECT / "docs" / "scaling.md", PROJECT / "benchmarks" / "results"
CASES = {"ppo_cartpole": "CartPole", "ppo_halfcheetah": "HalfCheetah", "ppo_humanoid": "Humanoid"}
WAYS = {"every_step": "every gradient joined", "once_a_rollout": "once a rollout"}
WORKERS = {"workers": "that wait for the learner", "workers_ahead": "that collect ahead"}


def rendered(page: str) -> str:
    """The page with its table drawn anew."""
    return filled(page, "speed", table(["", "beside", "steps per second there", "times as many"], _rows()))


def _rows() -> Iterator[list[str]]:
    kinds = json.loads((RESULTS / "distributed.json").read_text())
    for name, found in kinds["overhead"]["figures"].items():
        yield _row(f"{CASES[name]}, one learner on Ray", "the stage's process, all cores", "in_process", found)
    for name, found in kinds["speedup"]["figures"].items():
        (case,) = [one for one in CASES if name.startswith(one)]
        way = WAYS[name.removeprefix(f"{case}_")]
        yield _row(f"{CASES[case]}, two learners, {way}", "the stage's process, one core", "one_learner", found)
    for name, found in json.loads((RESULTS / "rollout_workers.json").read_text())["cases"].items():
        for kind, title in WORKERS.items():
            what = f"{CASES[name]}, {found['workers']} rollout workers {title}"
            steps = {"steps_per_second_alone": found["one_process_steps_per_second"], "ratio": found["ratios"][kind]}
            yield _row(what, "the stage's process, all cores", "alone", steps)


def _row(what: str, beside: str, name: str, found: dict[str, Any]) -> list[str]:
    ratio = found["ratio"]
    shown = f"{ratio['median']:.2f} ({ratio['least']:.2f} to {ratio['most']:.2f})"
    return [what, beside, f"{found[f'steps_per_second_{name}']:,.0f}", shown]


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text()))
