"""Classic silent bugs of reinforcement learning, planted one at a time: does `make test` notice?

    python benchmarks/mutations.py run [NAME ...]   # all, or some; writes benchmarks/results/mutations.json
    python benchmarks/mutations.py render           # draws the table of docs/mutations.md from it

Each bug is an exact old and new text in a file of `benchmarks/mutations/`. A run copies the tracked tree into a
temporary folder, first checks that the tests of all chosen bugs pass there, then for each bug changes one text in a
copy of that copy and runs the bug's tests, which are some of `make test`, up to the first that fails. Machine code that
was kept is copied too, so that unchanged kernels need not be compiled for every bug. That of a changed one is never
loaded: the runner demands that it was compiled anew.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loomrl.system import machine_code
from loomrl.system.files import write_json

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "mutations"
RESULTS = ROOT / "benchmarks" / "results" / "mutations.json"
PAGE = ROOT / "docs" / "mutations.md"
CACHE = ".cache"  # of each copied tree
COMPILED = Path(CACHE, *machine_code.folder().parts[-2:])
BEGIN, END = "<!-- table -->\n", "<!-- end -->"
OPTIONS = ("-m", "not long", "-x", "-q", "--tb=line", "-p", "no:cacheprovider")  # of pytest
LIMIT_SECONDS = 1200.0  # tests that take longer hang
NO_VERDICT = re.compile(r"\b(NameError|ImportError|ModuleNotFoundError|SyntaxError|TypingError)\b")  # nothing ran
FAILURE = re.compile(r"^(?:FAILED|ERROR) ([^\s\[]+)", re.MULTILINE)  # without the test's parameters


class Broken(Exception):
    """A mutation, or the tree it is planted in, is not what it should be."""


@dataclass(frozen=True)
class Mutation:
    """One bug. `old` occurs exactly once in `file`."""

    name: str
    room: str  # the YAML file it stands in
    file: str
    bug: str  # what is wrong
    silent: str  # why nobody notices
    old: str
    new: str
    tests: tuple[str, ...]  # files, or single tests, of `make test`

    @property
    def digest(self) -> str:
        """Of what a result belongs to."""
        text = json.dumps([self.file, self.old, self.new])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def applied(self, source: str) -> str:
        """The source with the bug; raises `Broken` where it does not fit exactly once."""
        if (count := source.count(self.old)) != 1:
            raise Broken(f"{self.name}: its old text occurs {count} times in {self.file}; bring it up to date")
        changed = source.replace(self.old, self.new)
        compile(changed, self.file, "exec")
        return changed


def load() -> list[Mutation]:
    """All bugs, in the order of the files and within them."""
    return [
        Mutation(**{**entry, "room": path.stem, "tests": tuple(entry["tests"])})
        for path in sorted(FOLDER.glob("*.yaml"))
        for entry in yaml.safe_load(path.read_text())
    ]


# --- running ----------------------------------------------------------------------------------------------------


def copy_tree(target: Path) -> None:
    """The tracked files as they are now, and the machine code of them."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    tracked = [Path(name) for name in listed.decode().split("\0") if name]
    for name in tracked:
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    if machine_code.folder().is_dir():
        shutil.copytree(machine_code.folder(), target / COMPILED)


def environment_variables(tree: Path) -> dict[str, str]:
    """Variables under which `tree`'s code is imported, whatever is installed."""
    own = {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "LOOMRL_HOME": str(tree / ".home")}
    own |= {"XDG_CACHE_HOME": str(tree / CACHE)}
    return {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | own


def demand_own_code(tree: Path, file: str) -> None:
    """Raises `Broken` unless the tests in `tree` import `file` from there."""
    module = file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    script = f"import importlib.util; print(importlib.util.find_spec({module!r}).origin)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tree,
        env=environment_variables(tree),
        capture_output=True,
        text=True,
        check=True,
    )
    if Path(done.stdout.strip()) != tree / file:
        raise Broken(f"the tests would import {done.stdout.strip()} in place of {tree / file}")


def run_tests(tree: Path, tests: Iterable[str]) -> str | None:
    """The first test that fails in `tree`, or None."""
    command = [sys.executable, "-m", "pytest", *OPTIONS, *tests]
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment_variables(tree),
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT_SECONDS:g} s"
    if done.returncode == 0:
        return None
    if broken := NO_VERDICT.search(done.stdout):
        raise Broken(f"the bug is no bug but a {broken[1]}:\n{done.stdout[-3000:]}")
    if done.returncode != 1 or (failure := FAILURE.search(done.stdout)) is None:
        raise Broken(f"pytest ended with {done.returncode} in {tree}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return failure[1]


def newly_compiled(tree: Path, since: float) -> set[str]:
    """Names of the modules whose kernels were compiled since a time of the clock."""
    kept = (tree / COMPILED).rglob("*.nbc")
    return {path.name.partition(".")[0] for path in kept if path.stat().st_mtime > since}


def plant(mutation: Mutation, clean: Path, tree: Path) -> None:
    """`clean` with one bug, as `tree`. Machine code of the unchanged module is no danger: it is kept by content."""
    shutil.copytree(clean, tree, ignore=shutil.ignore_patterns("*.pyc", ".home"))
    path = tree / mutation.file
    path.write_text(mutation.applied(path.read_text()))


def judge(mutation: Mutation, clean: Path) -> dict[str, Any]:
    """Plant a bug and run its tests."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve() / "tree"
        plant(mutation, clean, tree)
        demand_own_code(tree, mutation.file)
        since = time.time()
        started = time.monotonic()
        killer = run_tests(tree, mutation.tests)
        seconds = time.monotonic() - started
        compiled = newly_compiled(tree, since)
    result = {"digest": mutation.digest, "killed": killer is not None, "by": killer, "seconds": round(seconds, 1)}
    if is_kernel(mutation, (clean / mutation.file).read_text()):
        result["compiled_anew"] = sorted(compiled)
        if Path(mutation.file).stem not in compiled:
            raise Broken(f"{mutation.name}: the changed kernel was not compiled; {compiled or 'nothing'} was")
    return result


def is_kernel(mutation: Mutation, source: str) -> bool:
    """Whether the changed text stands in a function that numba compiles; raises `Broken` where it is not there."""
    mutation.applied(source)
    before = source[: source.index(mutation.old) + len(mutation.old) - len(mutation.old.lstrip())]
    definitions = re.findall(r"^((?:@.*\n)*)(?:def|class) (\w+)", before, re.MULTILINE)
    decorators, name = definitions[-1] if definitions else ("", "")
    specialised = re.findall(r"^    \w+: Any = (_\w+)$", source, re.MULTILINE)
    return decorators.startswith(("@compiled", "@inlined")) or name in specialised


def run(names: list[str], only_new: bool) -> None:
    """Judge the named bugs, or all, or those that have no result yet, and keep the results; those of others stay."""
    chosen = [mutation for mutation in load() if not names or mutation.name in names]
    if only_new:
        known = {name: result["digest"] for name, result in results().items()}
        chosen = [mutation for mutation in chosen if known.get(mutation.name) != mutation.digest]
    if unknown := set(names) - {mutation.name for mutation in load()}:
        raise Broken(f"no such mutation: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder).resolve() / "clean"
        copy_tree(clean)
        demand_own_code(clean, "src/loomrl/__init__.py")
        tests = sorted({test for mutation in chosen for test in mutation.tests})
        if failed := run_tests(clean, tests):
            raise Broken(f"without any bug {failed} fails: nothing can be learnt from the tests")
        print(f"without a bug: {len(tests)} tests or files pass", flush=True)
        for mutation in chosen:
            result = judge(mutation, clean)
            keep(mutation, result)
            print(f"{mutation.name}: {result['by'] or 'SURVIVED'} ({result['seconds']} s)", flush=True)


def results() -> dict[str, Any]:
    """What is known, by the names of the bugs."""
    return json.loads(RESULTS.read_text())["mutations"] if RESULTS.exists() else {}


def keep(mutation: Mutation, result: dict[str, Any]) -> None:
    """Add one result; those of bugs that are no more go."""
    known = results() | {mutation.name: result}
    current = {one.name: known[one.name] for one in load() if one.name in known}
    num_killed = sum(one["killed"] for one in current.values())
    write_json(RESULTS, {"killed": num_killed, "planted": len(current), "mutations": current})


# --- the page ---------------------------------------------------------------------------------------------------


def rendered(page: str) -> str:
    """The page with its table drawn anew."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + table() + END + after


def table() -> str:
    """One row for each bug, in sections by room."""
    known, bugs = results(), load()
    killed = sum(known[bug.name]["killed"] for bug in bugs)
    lines = ["", f"**{killed} of {len(bugs)} are noticed ({100 * killed / len(bugs):.0f} %).**", ""]
    for room in dict.fromkeys(bug.room for bug in bugs):
        lines += [f"### {room.replace('_', ' ')}", "", "| the bug | why it is silent | in | noticed by |"]
        lines += ["|---|---|---|---|"]
        lines += [_row(bug, known[bug.name]) for bug in bugs if bug.room == room]
        lines.append("")
    return "\n".join(lines)


def _row(bug: Mutation, result: dict[str, Any]) -> str:
    file, _, test = (result["by"] or "").partition("::")
    killer = f"`{test}` in `{Path(file).name}`" if test else result["by"] or "**nothing**"
    return f"| {bug.bug} | {bug.silent} | `{bug.file.removeprefix('src/loomrl/')}` | {killer} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run", help="plant bugs and run their tests")
    runner.add_argument("names", nargs="*")
    runner.add_argument("--new", action="store_true", help="only those without a result")
    commands.add_parser("render", help="draw the table").add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "run":
        run(arguments.names, arguments.new)
        return
    page = PAGE.read_text()
    if arguments.check and rendered(page) != page:
        sys.exit("docs/mutations.md is not what the results say; run `python benchmarks/mutations.py render`")
    PAGE.write_text(rendered(page))


if __name__ == "__main__":
    main()
