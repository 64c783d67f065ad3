"""The kept results of topics: `benchmarks/results/calibration_<topic>.json`, one entry for each batch of a setting."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmarks.calibration.topic import Rate, Setting, Topic, load
from benchmarks.resumable import Store

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
Counts = dict[str, list[int]]


@dataclass(frozen=True)
class Found:
    """How often a rate's outcome was true in all streams of a setting."""

    setting: Setting
    rate: Rate
    num_true: int
    num_claimed: int
    num_streams: int

    @property
    def is_complete(self) -> bool:
        """Whether there were as many streams as demanded."""
        return self.num_streams >= self.setting.num_streams

    @property
    def is_rejected(self) -> bool:
        """Whether the streams there were contradict the stated rate."""
        return not self.rate.is_met(self.num_true, self.num_claimed)

    @property
    def is_met(self) -> bool:
        """Whether the stated rate stands, in as many streams as demanded, of which some claimed something."""
        return self.is_complete and self.num_claimed > 0 and not self.is_rejected


def store(topic: Topic, folder: Path = RESULTS) -> Store:
    """Where a topic's results are kept."""
    return Store(folder / f"calibration_{topic.name}.json", ROOT)


def key(setting: Setting, batch: int) -> str:
    """Of one batch."""
    return f"{setting.name}, batch {batch + 1} of {setting.batch} streams"


def missing(topic: Topic, kept: Store) -> list[tuple[Setting, int]]:
    """The batches that were never played, or with other sources: the first of every setting before the second of
    any."""
    todo = [(setting, batch) for setting in topic.settings for batch in range(setting.num_batches)]
    return sorted((one for one in todo if not kept.is_current(key(*one), topic.sources)), key=lambda one: one[1])


def make(topic: Topic, processes: int, tell: Callable[[str], None], folder: Path = RESULTS) -> None:
    """Play what is missing, in as many processes, and drop what no setting asks for any more."""
    kept = store(topic, folder)
    todo = missing(topic, kept)
    for number, (setting, batch, counts) in enumerate(_played(topic, todo, processes), 1):
        kept.put(key(setting, batch), topic.sources, counts)
        tell(f"{topic.name}: {setting.name}: batch {batch + 1} of {setting.num_batches} ({number} of {len(todo)})")
    kept.keep(key(setting, batch) for setting in topic.settings for batch in range(setting.num_batches))


def found(topic: Topic, folder: Path = RESULTS) -> list[Found]:
    """Every rate of a topic, summed over the batches that are kept."""
    values = store(topic, folder).values()
    rows = []
    for setting in topic.settings:
        batches = [values[key(setting, b)] for b in range(setting.num_batches) if key(setting, b) in values]
        for rate in setting.rates:
            counts = [batch.get(rate.outcome, [0, 0]) for batch in batches]
            true, claimed = (sum(count[place] for count in counts) for place in (0, 1))
            rows.append(Found(setting, rate, true, claimed, len(batches) * setting.batch))
    return rows


def _played(topic: Topic, todo: list[tuple[Setting, int]], processes: int) -> Iterator[tuple[Setting, int, Counts]]:
    if processes == 1:
        for setting, batch in todo:
            yield setting, batch, topic.play(setting, batch)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(_play, topic.name, setting.name, batch) for setting, batch in todo]
        for (setting, batch), job in zip(todo, jobs, strict=True):
            yield setting, batch, job.result()


def _play(topic: str, setting: str, batch: int) -> Counts:
    loaded = load(topic)
    (chosen,) = [one for one in loaded.settings if one.name == setting]
    return loaded.play(chosen, batch)
