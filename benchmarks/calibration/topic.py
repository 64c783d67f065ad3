"""What a topic offers: settings, streams of data simulated in each, and the rates that are stated for them.

A file of `topics/` is a topic. It has a docstring, whose first paragraph stands above its table, and

    SOURCES = ("src/loomrl/statistics/betting.py",)       # files and folders that its results depend on, besides itself
    SETTINGS = (Setting("8 agents, one broken", simulate, (at_most("wrong", 0.05),)), ...)

`simulate(rng, num_streams)` plays that many independent streams and returns the outcomes of each by their names. It
calls the code that decides in production, not a copy of it.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

import numpy as np

FOLDER = Path(__file__).parent / "topics"
Kind = Literal["false alarms", "coverage", "power"]
Outcomes = Mapping[str, Sequence[bool | None]]  # name -> one for each stream; None: nothing was claimed in it
Simulation = Callable[[np.random.Generator, int], Outcomes]


@dataclass(frozen=True)
class Rate:
    """How often an outcome is stated to be true, among the streams in which something was claimed."""

    outcome: str
    kind: Kind
    stated: float

    @property
    def is_upper(self) -> bool:
        """Whether the outcome is to be no more frequent than stated; else no less."""
        return self.kind == "false alarms"

    def is_met(self, num_true: int, num_claimed: int) -> bool:
        """That a one-sided binomial test at 1 % does not reject the stated rate."""
        return self.p_value(num_true, num_claimed) > 0.01

    def p_value(self, num_true: int, num_claimed: int) -> float:
        """The probability of at least as many false alarms, or as few covered or found, at the stated rate."""
        from scipy.stats import binomtest

        if not num_claimed:
            return 1.0
        side = "greater" if self.is_upper else "less"
        return float(binomtest(num_true, num_claimed, self.stated, alternative=side).pvalue)


def at_most(outcome: str, level: float) -> Rate:
    """Of false alarms."""
    return Rate(outcome, "false alarms", level)


def covers(outcome: str, confidence: float) -> Rate:
    """Of intervals and bounds that hold."""
    return Rate(outcome, "coverage", confidence)


def finds(outcome: str, power: float) -> Rate:
    """Of differences that are there and found."""
    return Rate(outcome, "power", power)


@dataclass(frozen=True)
class Setting:
    """One way in which data come about. Streams are simulated and kept in batches; the gate plays one batch anew."""

    name: str
    simulate: Simulation
    rates: tuple[Rate, ...]
    num_streams: int = 1_000
    batch: int = 50
    in_gate: bool = True  # whether a batch takes seconds, so that the tests may play it

    @property
    def num_batches(self) -> int:
        """Of `num_streams` streams, the last one whole."""
        return -(-self.num_streams // self.batch)


@dataclass(frozen=True)
class Topic:
    """A bound or a test, as its file says."""

    name: str
    text: str  # the first paragraph of its docstring
    settings: tuple[Setting, ...]
    sources: tuple[str, ...]

    def play(self, setting: Setting, batch: int, seed: int = 0, num_streams: int | None = None) -> dict[str, list[int]]:
        """Simulate one batch: outcome -> [streams in which it was true, in which something was claimed].

        Raises:
            ValueError: when an outcome has not one value for each stream, or a stated rate has no outcome.
        """
        count = num_streams or setting.batch
        text = f"{self.name}/{setting.name}/{batch}/{seed}"
        rng = np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big"))
        outcomes = setting.simulate(rng, count)
        if set(outcomes) != {rate.outcome for rate in setting.rates} or any(len(o) != count for o in outcomes.values()):
            raise ValueError(f"{self.name}, {setting.name}: give each rate's outcome for each of {count} streams")
        return {name: _counted(values) for name, values in outcomes.items()}


def topics() -> dict[str, Topic]:
    """All topics by name, in the order of their files."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__")
    return {name: load(name) for name in names}


def load(name: str) -> Topic:
    """The topic of `topics/<name>.py`.

    Raises:
        ValueError: when two settings have one name.
    """
    module = import_module(f"benchmarks.calibration.topics.{name}")
    settings = tuple(module.SETTINGS)
    if len({setting.name for setting in settings}) < len(settings):
        raise ValueError(f"topic {name}: two settings have one name")
    text = " ".join((module.__doc__ or "").strip().split("\n\n")[0].split())
    return Topic(name, text, settings, (f"benchmarks/calibration/topics/{name}.py", *module.SOURCES))


def each(stream: Callable[[np.random.Generator], Mapping[str, bool | None]]) -> Simulation:
    """A simulation that plays one stream after the other."""

    def simulate(rng: np.random.Generator, num_streams: int) -> Outcomes:
        found = [stream(one) for one in rng.spawn(num_streams)]
        return {name: [one[name] for one in found] for name in found[0]}

    return simulate


def _counted(values: Sequence[bool | None]) -> list[int]:
    claimed = [bool(value) for value in values if value is not None]
    return [sum(claimed), len(claimed)]
