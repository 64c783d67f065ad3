"""Play what is missing of the topics, keep it, and draw `docs/calibration.md`:

    python -m benchmarks.calibration [TOPIC ...] [--processes 2]         # from the root of the project
    python -m benchmarks.calibration TOPIC ... --seed 7 --streams 20     # another seed and few streams: shown, not kept
    python -m benchmarks.calibration --render                            # the page and its pictures alone
    python -m benchmarks.calibration --status                            # how many batches are of the code as it is

Ends with 1 when a stated rate is not met.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.calibration.page import PAGE, draw, rendered
from benchmarks.calibration.results import RESULTS, found, make, missing, store
from benchmarks.calibration.topic import Topic, topics


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("topics", nargs="*", metavar="TOPIC")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--streams", type=int)
    parser.add_argument("--render", action="store_true")
    parser.add_argument("--status", action="store_true")
    arguments, known = parser.parse_args(), topics()
    if unknown := set(arguments.topics) - set(known):
        parser.error(f"no topic {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    chosen = [known[name] for name in arguments.topics or known]
    if arguments.status:
        print("\n".join(map(status, chosen)))
        return
    if arguments.seed is not None or arguments.streams is not None:
        met = [_try(topic, arguments.seed or 0, arguments.streams) for topic in chosen]
        sys.exit(not all(met))
    if not arguments.render:
        for topic in chosen:
            make(topic, arguments.processes, lambda line: print(line, flush=True))
    PAGE.write_text(rendered(PAGE.read_text()))
    for topic in chosen:
        draw(topic)
    wrong = [(topic.name, one) for topic in chosen for one in found(topic) if not one.is_met]
    for name, one in wrong:
        print(f"{name}, {one.setting.name}: {one.rate.outcome} {one.num_true} of {one.num_claimed}, not as stated")
    sys.exit(bool(wrong))


def status(topic: Topic, folder: Path = RESULTS) -> str:
    """How many of a topic's batches are of the code as it is, in a sentence."""
    count = sum(setting.num_batches for setting in topic.settings)
    return (
        f"{topic.name}: {count - len(missing(topic, store(topic, folder)))} of {count} batches are of the code as it is"
    )


def _try(topic: Topic, seed: int, num_streams: int | None) -> bool:
    """Play one batch of every setting and print its rates; whether all are met."""
    met = True
    for setting in topic.settings:
        counts = topic.play(setting, 0, seed, num_streams)
        for rate in setting.rates:
            true, claimed = counts[rate.outcome]
            good = rate.is_met(true, claimed)
            met &= good
            sign = "<=" if rate.is_upper else ">="
            print(
                f"{topic.name}, {setting.name}: {rate.outcome} {true} of {claimed} "
                f"(stated {sign} {rate.stated:g}){'' if good else ' NOT MET'}",
                flush=True,
            )
    return met


if __name__ == "__main__":
    main()
