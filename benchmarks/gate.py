"""How good the gate is: seeded bad policies, rewards and environments, and good policies beside them.

    python benchmarks/gate.py [--processes 2]        # what is missing; writes results/gate.json and docs/gate.md
    python benchmarks/gate.py bad --only back_door   # some of the bad ones; writes nothing
    python benchmarks/gate.py render                 # the page again, from the results
    python benchmarks/gate.py status                 # how many results are of the code as it is

The bad ones are the files of `benchmarks/seeded`. The good ones are CartPole policies of 100 training seeds whose mean
return over 1,000 fresh episodes is at least 475, and the policies that the files of `unseen` spoil, before they are
spoilt. CartPole's are examined with the config that ships, those of flawed worlds with the limits and objectives of
their task, those of `unseen` with the config that trained them: no region, radius or other setting that knows of a
flaw. A claim that is refuted, or left undecided, blocks bad and good ones alike, at the gate and beside a champion; the
champion of the good ones is the policy that `configs/cartpole.yaml` trains. Ends with exit code 1 when fewer than
95 % of the bad ones were blocked by a failure that was there again when it was played again, or more than 5 % of the
good ones were blocked; of some, when any was. Policies are trained anew on each machine: a file of `unseen` that does
no harm to the one it spoils (`benchmarks/seeded/harm.py`) is told, and not counted as bad.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.resumable import Store
from loomrl.system.threads import one_thread
from seeded.beside import CARTPOLE, challenge, challenge_honestly, policy_of
from seeded.harm import ALPHA, NUM_PAIRS, measure
from seeded.trained import KIND, path_of, unseen
from seeded.trained import examine as examine_trained
from seeded.workshop import GOOD_RETURN, Outcome, Workshop, is_refused, seeded

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent
RESULTS = PROJECT / "benchmarks" / "results" / "gate.json"
PAGE = PROJECT / "docs" / "gate.md"
NUM_GOOD = 100
LEAST_REFUSED, MOST_BLOCKED = 0.95, 0.05
BEGIN, END = "<!-- table -->", "<!-- end -->"
BESIDE = "beside"  # the champion
HARM = "harm"  # that is measured
RETRAINED = "retrained"  # honestly, with another seed
NUM_RETRAINED = 2  # of each config but CartPole's, whose policies are the good ones
POLICIES = "policies"  # the kind of those that are CartPole's good one, spoilt
CODE = (
    "src/loomrl/safety",
    "src/loomrl/training",
    "src/loomrl/algorithms",
    "src/loomrl/environment",
    "src/loomrl/statistics",
    "benchmarks/seeded/workshop.py",
)
CODE_BESIDE = (
    "src/loomrl/evaluation",
    "src/loomrl/export",
    "src/loomrl/serving/policy",
    "src/loomrl/shadow",
    "src/loomrl/promotion/comparison/returns.py",
    "benchmarks/seeded/beside.py",
    "benchmarks/seeded/trained.py",
)
CODE_HARM = (
    "src/loomrl/training",
    "src/loomrl/algorithms",
    "benchmarks/seeded/harm.py",
    "benchmarks/seeded/trained.py",
)
SOURCES = (*CODE, "configs/cartpole.yaml")


def examine_bad(kind: str, name: str) -> dict[str, Any]:
    """What became of a seeded file."""
    (case,) = (one for one in seeded() if one.__name__.split(".")[1:] == [kind, name])
    with tempfile.TemporaryDirectory() as folder, one_thread():
        outcome = Workshop(Path(folder)).examine(case)
        return _row(kind, name, case.__doc__, outcome, folder)


def _named(name: str, cases: Iterable[ModuleType]) -> ModuleType:
    (case,) = (one for one in cases if one.__name__.endswith(f".{name}"))
    return case


def examine_unseen(name: str, trained: Path) -> dict[str, Any]:
    """What became of a file of `unseen`; `trained` keeps policies for the files that come after it."""
    case = _named(name, unseen())
    with tempfile.TemporaryDirectory() as folder, one_thread():
        outcome = examine_trained(case.POLICY, case, Path(folder), trained)
        return _row(KIND, name, case.__doc__, outcome, folder) | {"policy": case.POLICY}


def examine_unspoilt(policy: str, trained: Path) -> dict[str, Any]:
    """What became of a policy that files of `unseen` spoil, as it was trained."""
    with tempfile.TemporaryDirectory() as folder, one_thread():
        outcome = examine_trained(policy, None, Path(folder), trained)
        return _row("unspoilt", policy, None, outcome, folder) | {"passed": not outcome.blocking}


def examine_beside(name: str, trained: Path) -> dict[str, Any]:
    """What the champion's presence refuses a spoilt policy for that the gate let pass."""
    case = _named(name, [*seeded(), *unseen()])
    with tempfile.TemporaryDirectory() as folder, one_thread():
        outcome = challenge(case, Path(folder), trained)
        return _row(BESIDE, name, case.__doc__, outcome, folder) | {"policy": policy_of(case)}


def _row(kind: str, name: str, wrong: str | None, outcome: Outcome, folder: str) -> dict[str, Any]:
    return {
        "kind": kind,
        "name": name,
        "wrong": " ".join((wrong or "").split()),
        "refused": is_refused(outcome),
        "blocking": list(outcome.blocking),
        "refuted": list(outcome.refuted),
        "replayed": list(outcome.replayed),
        "finding": outcome.finding.replace(folder, "..."),
    }


def examine_good(seed: int, trained: Path) -> dict[str, Any]:
    """What became of the policy of a training seed, at the gate and beside the champion that the config trains."""
    with tempfile.TemporaryDirectory() as folder, one_thread():
        stages = Path(folder) / f"good-{seed}"
        mean, outcome = Workshop(Path(folder)).good(seed, stages)
        beside = Outcome() if outcome.blocking else challenge_honestly(CARTPOLE, stages, Path(folder), trained)
        return {
            "seed": seed,
            "fresh_mean_return": mean,
            "is_good": mean >= GOOD_RETURN,
            "passed": not outcome.blocking,
            "blocking": list(outcome.blocking),
            "finding": outcome.finding.replace(folder, "..."),
            "beside": _beside_champion(beside, folder),
        }


def examine_retrained(policy: str, seed: int, trained: Path) -> dict[str, Any]:
    """What became of another policy of a config, at the gate and beside the champion that the config trains."""
    with tempfile.TemporaryDirectory() as folder, one_thread():
        root = Path(folder) / "retrained"
        root.mkdir()
        outcome = examine_trained(policy, None, root, trained, seed)
        beside = Outcome()
        if not outcome.blocking:
            (stages,) = root.iterdir()
            beside = challenge_honestly(policy, stages, Path(folder), trained)
        row = _row(RETRAINED, f"{policy}-{seed}", None, outcome, folder) | {"passed": not outcome.blocking}
        return row | {"beside": _beside_champion(beside, folder)}


def _beside_champion(outcome: Outcome, folder: str) -> dict[str, Any]:
    """What became of a good policy there."""
    return {
        "blocking": list(outcome.blocking),
        "refuted": list(outcome.refuted),
        "finding": outcome.finding.replace(folder, "..."),
    }


def examine_harm(name: str, trained: Path) -> dict[str, Any]:
    """What a file of `unseen` does to the policy that it spoils, measured apart from the gate."""
    with one_thread():
        return {"kind": HARM, "name": name, **measure(_named(name, unseen()), trained)}


def jobs(command: str, only: list[str], count: int, trained: Path = HERE) -> dict[str, tuple[Any, ...]]:
    """What is to be examined, by the names of results: a function and its arguments."""
    found: dict[str, tuple[Any, ...]] = {}
    if command != "good":
        for case in seeded():
            _, kind, name = case.__name__.split(".")
            if not only or name in only:
                found[f"{kind}/{name}"] = (examine_bad, kind, name)
        for case in unseen():
            name = case.__name__.rpartition(".")[2]
            if not only or name in only:
                found[f"{KIND}/{name}"] = (examine_unseen, name, trained)
                found[f"{HARM}/{name}"] = (examine_harm, name, trained)
    if command != "bad":
        found |= {f"good/{seed}": (examine_good, seed, trained) for seed in range(1, count + 1)}
        found |= {f"unspoilt/{name}": (examine_unspoilt, name, trained) for name in sorted(policies())}
    if command == "all" and not only:
        found |= {
            f"{RETRAINED}/{name}-{seed}": (examine_retrained, name, seed, trained)
            for name in sorted(policies() - {CARTPOLE})
            for seed in range(1001, 1001 + NUM_RETRAINED)
        }
    return found


def jobs_beside(values: dict[str, dict[str, Any]], trained: Path = HERE) -> dict[str, tuple[Any, ...]]:
    """The same for the spoilt policies that the gate let pass."""
    passed = [row for row in values.values() if row.get("kind") in (KIND, POLICIES) and not row["blocking"]]
    return {f"{BESIDE}/{row['name']}": (examine_beside, row["name"], trained) for row in passed}


def policies() -> set[str]:
    """Those that files of `unseen` spoil."""
    return {case.POLICY for case in unseen()}


def sources(name: str) -> tuple[str, ...]:
    """Files and folders that a result depends on."""
    kind, _, rest = name.partition("/")
    if kind == HARM:
        config = str(path_of(_named(rest, unseen()).POLICY).relative_to(PROJECT))
        return (*CODE_HARM, config, f"benchmarks/seeded/{KIND}/{rest}.py")
    if kind == RETRAINED:
        return (*sources(f"unspoilt/{rest.rpartition('-')[0]}"), *CODE_BESIDE)
    if kind == BESIDE and (PROJECT / f"benchmarks/seeded/{POLICIES}/{rest}.py").exists():
        return (*sources(f"{POLICIES}/{rest}"), *CODE_BESIDE)
    if kind in (KIND, BESIDE, "unspoilt"):
        spoilt = [case for case in unseen() if case.__name__.endswith(f".{rest}")] if kind != "unspoilt" else []
        config = path_of(spoilt[0].POLICY if spoilt else rest).relative_to(PROJECT)
        files = (f"benchmarks/seeded/{KIND}/{rest}.py",) if spoilt else ()
        after = CODE_BESIDE if kind == BESIDE else ()
        return (*CODE, "benchmarks/seeded/trained.py", str(config), *files, *after)
    return (*SOURCES, *CODE_BESIDE) if kind == "good" else (*SOURCES, f"benchmarks/seeded/{name}.py")


def examined(todo: dict[str, tuple[Any, ...]], processes: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Results, as they come."""
    started = time.monotonic()
    with get_context("spawn").Pool(processes, maxtasksperchild=8) as pool:
        for number, (name, row) in enumerate(pool.imap_unordered(_examined, todo.items()), 1):
            if row.get("kind") == HARM:
                told = ", ".join(f"{kind} {one['p_value']:.2g}" for kind, one in row["found"].items())
            elif "passed" in row:
                told = "passed" if row["passed"] else f"blocked: {row['finding']}"
                if later := row.get("beside", {}).get("blocking"):
                    told += f", refused beside the champion by {', '.join(later)}"
            else:
                how = "MISSED" if not row["refused"] else "refused" if row["refuted"] else "left undecided"
                told = f"{how} by {', '.join(row['refuted'] or row['blocking'])}; again: {', '.join(row['replayed'])}"
            print(f"{number} of {len(todo)}, {time.monotonic() - started:.0f} s: {name}: {told}", flush=True)
            yield name, row


def _examined(job: tuple[str, tuple[Any, ...]]) -> tuple[str, dict[str, Any]]:
    name, (examine, *arguments) = job
    return name, examine(*arguments)


def of_results(values: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows of bad and of good ones, in the order of their files and seeds."""
    rows = [values[name] for name in jobs("all", [], NUM_GOOD) if name in values]
    return {
        "bad": [row for row in rows if "refused" in row and "passed" not in row],
        HARM: [row for row in rows if row.get("kind") == HARM],
        "good": [row for row in rows if "seed" in row],
        "unspoilt": [row for row in rows if row.get("kind") == "unspoilt"],
        RETRAINED: [row for row in rows if row.get("kind") == RETRAINED],
        "beside": [row for row in values.values() if row.get("kind") == BESIDE],
    }


def reached(document: dict[str, Any]) -> bool:
    """Whether both limits hold. Bad are the files but those that did no harm to the policy they spoil; what is refused
    beside a champion is refused before promotion, too, and only what was there again when it was played again counts.
    """
    refused, harmful = refused_of_harmful(document)
    good = [row for row in document["good"] if row["is_good"]]
    blocked = sum(map(is_blocked, good)) / len(good)
    unspoilt = all(row["passed"] for row in document["unspoilt"])
    return bool(refused / harmful >= LEAST_REFUSED and blocked <= MOST_BLOCKED and unspoilt)


def refused_of_harmful(document: dict[str, Any]) -> tuple[int, int]:
    """How many of the files that did harm were refused, of how many."""
    harmless = harmless_ones(document)
    refused = sum(row["name"] not in harmless for row in _stopped(document))
    return refused, sum(row["name"] not in harmless for row in document["bad"])


def _stopped(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of bad ones that were refused, by the gate or beside a champion, by a failure that was there again."""
    return [row for row in [*document["bad"], *document["beside"]] if is_replayed(row)]


def harmless_ones(document: dict[str, Any]) -> set[str]:
    """Names of the files of `unseen` that did no harm to the policy that they spoil."""
    return {row["name"] for row in document[HARM] if not row["is_harmful"]}


def is_replayed(row: dict[str, Any]) -> bool:
    """Whether a failure for which it was refused was there again. Beside a champion only what is refuted counts: of a
    pair of policies that is undecided, the worst pair of episodes shows nothing."""
    names = row["refuted"] if row.get("kind") == BESIDE else row["blocking"]
    return not set(names).isdisjoint(row["replayed"])


def is_blocked(row: dict[str, Any]) -> bool:
    """Whether a good policy was stopped, by the gate or beside a champion."""
    return not row["passed"] or bool(row.get("beside", {}).get("blocking"))


def rendered(page: str, document: dict[str, Any]) -> str:
    """The page with the tables of what was found."""
    bad, harm = document["bad"], {row["name"]: row for row in document[HARM]}
    known, others = ([row for row in bad if (row["kind"] == KIND) is new] for new in (False, True))
    beside = {row["name"]: row for row in document["beside"]}
    lines = [
        _told_of_bad(document),
        "",
        _told_of_good(document),
        "",
        "| what is wrong | refused by the gate | played again | beside the champion it was |",
        "|---|---|---|---|",
        *(f"| {row['wrong']} | {_refused_by(row)} | {_replayed(row)} | {_beside(row, beside)} |" for row in known),
        "",
        f"The last column of the next table says what each file of the other authors does to the policy it spoils, in "
        f"{NUM_PAIRS} pairs of each kind of episodes: the greatest fall of the mean return that is sure at 5 %.",
        "",
        "| policy | what is wrong | refused by the gate | played again | beside the champion it was | harm |",
        "|---|---|---|---|---|---|",
        *(
            f"| `{row['policy']}` | {row['wrong']} | {_refused_by(row)} | {_replayed(row)} | {_beside(row, beside)} | "
            f"{_harm(harm[row['name']])} |"
            for row in others
        ),
    ]
    head, _, rest = page.partition(BEGIN)
    return "\n".join([head + BEGIN, "", *lines, "", END + rest.partition(END)[2]])


def _told_of_bad(document: dict[str, Any]) -> str:
    bad, stopped, (refused, harmful) = document["bad"], _stopped(document), refused_of_harmful(document)
    by_gate = sum(row["kind"] != BESIDE for row in stopped)
    undecided = sum(not row["refuted"] for row in stopped)
    names = ", ".join(f"`{name}`" for name in sorted(harmless_ones(document))) or "none"
    return (
        f"{len(stopped)} of {len(bad)} seeded files ({len(stopped) / len(bad):.1%}) were refused before promotion by a "
        f"failure that was there again when it was played again: {by_gate} by the gate, of them {undecided} by claims "
        f"that stayed undecided, and {len(stopped) - by_gate} beside the champion they were. Of the {harmful} "
        f"that did harm, {refused} ({refused / harmful:.1%}) were. No harm to the policy of this machine was "
        f"measured of: {names}."
    )


def _told_of_good(document: dict[str, Any]) -> str:
    good = [row for row in document["good"] if row["is_good"]]
    unspoilt, again = document["unspoilt"], document[RETRAINED]
    refused_later = [row for row in again if row["passed"] and is_blocked(row)]
    told = "; refused there: " + ", ".join(
        f"`{row['name']}` by {_codes(row['beside']['blocking'])}" + ("" if row["beside"]["refuted"] else " (undecided)")
        for row in refused_later
    )
    return (
        f"{sum(row['passed'] for row in good)} of {len(good)} good policies of CartPole passed the gate, and "
        f"{len(good) - sum(map(is_blocked, good))} of them beside the champion too. Of the {len(unspoilt)} policies "
        f"that the other authors spoil, {sum(row['passed'] for row in unspoilt)} pass as they were trained. Of "
        f"{len(again)} that the configs but CartPole's train with other seeds, {sum(row['passed'] for row in again)} "
        f"pass the gate, and {len(again) - sum(map(is_blocked, again))} of them beside the champion too"
        f"{told if refused_later else ''}."
    )


def _harm(row: dict[str, Any]) -> str:
    """The kind of episodes in which the mean return falls most, and from what to what; of the falls that are sure."""
    sure = {kind: one for kind, one in row["found"].items() if one["p_value"] <= ALPHA}
    if not sure:
        return "none found"
    kind, one = max(sure.items(), key=lambda item: item[1]["as_it_is"] - item[1]["spoilt"])
    return f"{kind}: {one['as_it_is']:.4g} → {one['spoilt']:.4g}"


def _refused_by(row: dict[str, Any]) -> str:
    if row["refuted"]:
        return _codes(row["refuted"])
    return f"undecided: {_codes(row['blocking'])}" if row["refused"] else "**not refused**"


def _beside(row: dict[str, Any], beside: dict[str, dict[str, Any]]) -> str:
    """What refused it, with what was there again; `-` where the gate had refused it."""
    if (found := beside.get(row["name"])) is None:
        return "-"
    again = f"; again: {_replayed(found)}" if found["refused"] else ""
    return _refused_by(found) + again


def _replayed(row: dict[str, Any]) -> str:
    return _codes(row["replayed"]) or "-"


def _codes(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["all", "bad", "good", "render", "status"], default="all")
    parser.add_argument("--only", nargs="+", default=[], help="names of seeded files")
    parser.add_argument("--count", type=int, default=NUM_GOOD, help="of good policies")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as trained:
        return _run(options, Path(trained))


def status(kept: Store) -> Iterator[str]:
    """For each kind of results, how many are of the code as it is."""
    names = [*jobs("all", [], NUM_GOOD), *jobs_beside(kept.values())]
    for kind in dict.fromkeys(name.partition("/")[0] for name in names):
        marks = [kept.is_current(name, sources(name)) for name in names if name.startswith(f"{kind}/")]
        yield f"{kind}: {sum(marks)} of {len(marks)} results are of the code as it is"


def _run(options: argparse.Namespace, trained: Path) -> int:
    if options.command == "status":
        print("\n".join(status(Store(RESULTS, PROJECT))))
        return 0
    kept, wanted = Store(RESULTS, PROJECT), jobs(options.command, options.only, options.count, trained)
    if options.command in ("bad", "good") and (options.only or options.count != NUM_GOOD):
        rows = [row for _, row in examined(wanted, options.processes) if row.get("kind") != HARM]
        return 0 if all(row["refused"] if "passed" not in row else not is_blocked(row) for row in rows) else 1
    if options.command != "render":
        todo = {name: job for name, job in wanted.items() if not kept.is_current(name, sources(name))}
        for name, row in examined(todo, options.processes):
            kept.put(name, sources(name), row)
        beside = jobs_beside(kept.values(), trained)
        todo = {name: job for name, job in beside.items() if not kept.is_current(name, sources(name))}
        for name, row in examined(todo, options.processes):
            kept.put(name, sources(name), row)
        kept.keep({**jobs("all", [], NUM_GOOD), **beside})
    document = of_results(kept.values())
    PAGE.write_text(rendered(PAGE.read_text(), document))
    return 0 if reached(document) else 1


if __name__ == "__main__":
    sys.exit(main())
