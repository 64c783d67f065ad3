"""Random manipulations of audit logs and of what LoomDB states of them: is each found, and named?

    python -m benchmarks.audit_manipulations            # all that are not kept yet; writes benchmarks/results
    python -m benchmarks.audit_manipulations --count 40 --seed 7   # a sample, not kept

Three chains with several segments, some compacted, some removed by `gc`, all anchored, are copied; one manipulation,
drawn by its number, is made; `verify --signed` reads the copy. It is found when a finding is new; it is named when the
finding says the chain it was made in, and the segment, record or statement. Who manipulates has no signing key.
"""

import argparse
import os
import random
import shutil
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from benchmarks.resumable import Store
from loomrl.storage.audit.anchors import state
from loomrl.storage.audit.chain import GENESIS, seal
from loomrl.storage.audit.compaction import compact
from loomrl.storage.audit.full_verification import AuditReport, verify_all
from loomrl.storage.audit.keeper import AuditKeeper
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import record
from loomrl.storage.audit.segments import lines, segments
from loomrl.storage.loomdb.database import LoomDB
from loomrl.system.files import sha256

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "audit_manipulations.json"
SOURCES = (
    "benchmarks/audit_manipulations.py",
    "src/loomrl/storage/audit",
    "src/loomrl/storage/loomdb/database.py",
    "src/loomrl/system/security/signing.py",
    "src/loomrl/system/security/signing_keys.py",
)
COUNT, PART, SEED = 1_200, 60, 2026
CHAINS = ("server-0", "server-1", "server-1-shadow")


def build(home: Path) -> None:
    """Three chains as servers leave them: 4 segments each, the first removed by `gc` in one, 2 compacted in another."""
    for number, name in enumerate(CHAINS):
        for start in range(4):
            log = AuditLog("cartpole", name)
            keeper = AuditKeeper(log)
            with LoomDB.open() as db:
                for step in range(3):
                    told = {"observation": [0.1 * step, number, start, 1.0], "action": step % 2, "value": 0.5 + step}
                    names = {"policy": "cartpole", "version": "1", "episode_id": f"{start}"}
                    log.append([record("decision", decision_id=None, override=None, propensity=1.0, **names, **told)])
                    keeper.anchor(lambda db=db: db)
            log.close()
    audit = home / "audit" / "cartpole"
    compact(audit / "server-1")
    first = segments(audit / "server-0")[0]
    ends = [orjson.loads(line) for line in lines(first)]
    gone = {"first_segment": first.stem, "segment": first.stem, "first_sequence": 0, "sequence": ends[-1]["sequence"]}
    with LoomDB.open() as db:
        state(db, "removal", "cartpole/server-0", **gone, digest=ends[-1]["hash"], by="gc", reason="a benchmark")
    first.unlink()


@dataclass
class Victim:
    """A copy of the home, and the random numbers that say what becomes of it."""

    home: Path
    rng: random.Random

    @property
    def chains(self) -> list[Path]:
        return sorted((self.home / "audit" / "cartpole").iterdir())

    def chain(self) -> Path:
        return self.rng.choice(self.chains)

    def segment(self, chain: Path, suffix: str = "") -> Path:
        return self.rng.choice([path for path in segments(chain) if path.suffix == (suffix or path.suffix)])

    def plain(self) -> Path:
        return self.rng.choice([path for chain in self.chains for path in segments(chain) if path.suffix == ".jsonl"])

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.home / "loom.db")) as connection:
            yield connection
            connection.commit()

    def statements(self, kind: str | None = None) -> list[tuple[int, str]]:
        """Number and chain of all statements but the last, which no record names yet."""
        with self.database() as db:
            found = db.execute("SELECT number, server, kind FROM audit_anchors ORDER BY number").fetchall()[:-1]
        return [(number, server) for number, server, one in found if kind in (None, one)]


def named(path: Path) -> list[str]:
    """How findings may name a place in a chain."""
    return [f"cartpole/{path.parent.name}", path.stem]


Manipulation = Callable[[Victim], list[str]]  # makes it; returns the words a finding must hold


def delete_segments(victim: Victim) -> list[str]:
    """The oldest, the newest or any, up to all of them."""
    paths = segments(victim.chain())
    start = victim.rng.randrange(len(paths))
    stop = victim.rng.randint(start + 1, len(paths))
    for path in paths[start:stop]:
        path.unlink()
    return named(paths[start])


def delete_chain(victim: Victim) -> list[str]:
    chain = victim.chain()
    shutil.rmtree(chain)
    return [f"cartpole/{chain.name}", "the whole chain is missing", "000004"]


def truncate(victim: Victim) -> list[str]:
    """Bytes, or whole records, from the end of the chain's last segment."""
    path = segments(victim.chain())[-1]
    data = path.read_bytes()
    if victim.rng.random() < 0.5:
        whole = data.splitlines(keepends=True)
        path.write_bytes(b"".join(whole[: victim.rng.randrange(len(whole))]))
    else:
        path.write_bytes(data[: victim.rng.randrange(len(data))])
    return named(path)


def cut_segment(victim: Victim) -> list[str]:
    """The end of any segment."""
    path = victim.plain()
    data = path.read_bytes()
    path.write_bytes(data[: victim.rng.randrange(len(data))])
    return named(path)[:1]


def delete_record(victim: Victim) -> list[str]:
    path, whole, index = _record(victim)
    path.write_bytes(b"".join(whole[:index] + whole[index + 1 :]))
    return named(path)[:1]


def reorder_records(victim: Victim) -> list[str]:
    path, whole, index = _record(victim)
    other = victim.rng.choice([place for place in range(len(whole)) if place != index])
    whole[index], whole[other] = whole[other], whole[index]
    path.write_bytes(b"".join(whole))
    return named(path)


def duplicate_record(victim: Victim) -> list[str]:
    path, whole, index = _record(victim)
    whole.insert(victim.rng.randint(0, len(whole)), whole[index])
    path.write_bytes(b"".join(whole))
    return named(path)


def insert_foreign_record(victim: Victim) -> list[str]:
    path, whole, index = _record(victim)
    _, others, other = _record(victim, another=path.parent)
    whole.insert(index, others[other])
    path.write_bytes(b"".join(whole))
    return named(path)


def flip_bit(victim: Victim) -> list[str]:
    """Anywhere in any segment, compacted ones included."""
    path = victim.segment(victim.chain())
    data = bytearray(path.read_bytes())
    data[victim.rng.randrange(len(data))] ^= 1 << victim.rng.randrange(8)
    path.write_bytes(data)
    return named(path)


def flip_bit_in_parquet(victim: Victim) -> list[str]:
    path = victim.segment(victim.home / "audit" / "cartpole" / "server-1", ".parquet")
    data = bytearray(path.read_bytes())
    data[victim.rng.randrange(len(data))] ^= 1 << victim.rng.randrange(8)
    path.write_bytes(data)
    return named(path)


def edit_record(victim: Victim) -> list[str]:
    """Without a new hash."""
    path, whole, index = _record(victim)
    whole[index] = whole[index].replace(b'"reward":null', b'"reward":9999')
    path.write_bytes(b"".join(whole))
    return named(path)


def edit_with_new_hash(victim: Victim) -> list[str]:
    path, whole, index = _record(victim)
    entry = orjson.loads(whole[index])
    previous, _ = entry.pop("previous_hash"), entry.pop("hash")
    whole[index], _ = seal(entry | {"agent_id": "somebody else"}, previous)
    path.write_bytes(b"".join(whole))
    return named(path)[:1]


def rewrite_from_here(victim: Victim) -> list[str]:
    """Edit one record and give new hashes to all after it, over all segments of the chain."""
    chain = victim.home / "audit" / "cartpole" / victim.rng.choice(("server-0", "server-1-shadow"))
    paths, digest = segments(chain), ""
    count = sum(len(path.read_bytes().splitlines()) for path in paths)
    target, place = victim.rng.randrange(count), -1
    for path in paths:
        forged = []
        for written in path.read_bytes().splitlines(keepends=True):
            line, entry = written, orjson.loads(written)
            place += 1
            previous, _ = entry.pop("previous_hash"), entry.pop("hash")
            if place == target:
                line, digest = seal(entry | {"agent_id": "somebody else"}, previous)
            elif place > target:
                line, digest = seal(entry, digest)
            forged.append(line)
        path.write_bytes(b"".join(forged))
    return [f"cartpole/{chain.name}", "is not the one that was anchored"]


def swap_segments(victim: Victim) -> list[str]:
    """Of one chain, or of two."""
    chain = victim.chain()
    other = chain if victim.rng.random() < 0.5 else victim.chain()
    one, two = _two(victim, segments(chain), segments(other))
    _swap(one, two)
    return named(one)[:1]


def swap_chains(victim: Victim) -> list[str]:
    one, two = victim.rng.sample(victim.chains, 2)
    _swap(one, two)
    return [f"cartpole/{one.name}", f"was written as chain cartpole/{two.name}"]


def replace_chain(victim: Victim) -> list[str]:
    """By a copy of another one."""
    one, two = victim.rng.sample(victim.chains, 2)
    shutil.rmtree(one)
    shutil.copytree(two, one)
    return [f"cartpole/{one.name}", f"was written as chain cartpole/{two.name}"]


def forge_chain(victim: Victim) -> list[str]:
    """A new chain with a name of its own, all hashes right."""
    chain = victim.home / "audit" / "cartpole" / f"server-{victim.rng.randint(5, 99)}"
    chain.mkdir()
    digest, written = GENESIS, b""
    for sequence in range(victim.rng.randint(1, 5)):
        line, digest = seal(record("decision", action=sequence) | {"sequence": sequence}, digest)
        written += line
    (chain / "000001.jsonl").write_bytes(written)
    return [f"cartpole/{chain.name}", "LoomDB knows nothing of this chain"]


def restore_old_chain(victim: Victim) -> list[str]:
    """The chain as it was some segments ago."""
    chain = victim.chain()
    paths = segments(chain)
    for path in paths[victim.rng.randint(1, len(paths) - 1) :]:
        path.unlink()
    return [f"cartpole/{chain.name}", "truncated"]


def swap_forms(victim: Victim) -> list[str]:
    """A compacted file in the place of another."""
    chain = victim.home / "audit" / "cartpole" / "server-1"
    one, two = victim.rng.sample([path for path in segments(chain) if path.suffix == ".parquet"], 2)
    _swap(one, two)
    return named(one)


def delete_statement(victim: Victim) -> list[str]:
    number, _ = victim.rng.choice(victim.statements())
    with victim.database() as db:
        db.execute("DELETE FROM audit_anchors WHERE number = ?", (number,))
    return [f"statement {number} of LoomDB"]


def delete_statements_of_chain(victim: Victim) -> list[str]:
    """And the chain with them."""
    chain = victim.chain()
    with victim.database() as db:
        db.execute("DELETE FROM audit_anchors WHERE server = ?", (f"cartpole/{chain.name}",))
    shutil.rmtree(chain)
    return ["of LoomDB"]


def roll_back_statements(victim: Victim) -> list[str]:
    """LoomDB as it was, and the chains as they are."""
    first = victim.statements()[2][0]
    last = victim.rng.randint(first, _last_named(victim) - 1)
    with victim.database() as db:
        db.execute("DELETE FROM audit_anchors WHERE number > ?", (last,))
    return ["LoomDB was rolled back or rewritten"]


def edit_statement(victim: Victim) -> list[str]:
    """A digit of what it says, with and without the digest that belongs to it."""
    number, _ = victim.rng.choice(victim.statements())
    with victim.database() as db:
        ((payload, signature),) = db.execute(
            "SELECT payload, signature FROM audit_anchors WHERE number = ?", (number,)
        ).fetchall()
        places = [place for place, sign in enumerate(payload) if sign.isdigit()]
        place = victim.rng.choice(places)
        changed = payload[:place] + str((int(payload[place]) + 1) % 10) + payload[place + 1 :]
        digest = sha256(f"{changed}\n{signature or ''}".encode())
        db.execute("UPDATE audit_anchors SET payload = ? WHERE number = ?", (changed, number))
        if victim.rng.random() < 0.5:
            db.execute("UPDATE audit_anchors SET digest = ? WHERE number = ?", (digest, number))
    return [f"statement {number} of LoomDB|statement {number + 1} of LoomDB|cannot be relied on"]


def swap_statements(victim: Victim) -> list[str]:
    """What two rows say, of one chain or of two: heads change places."""
    (one, _), (two, _) = victim.rng.sample(victim.statements("head"), 2)
    with victim.database() as db:
        columns = ["payload", "digest", "signature", "keyid", *(["server"] if victim.rng.random() < 0.5 else [])]
        select, update = ", ".join(columns), ", ".join(f"{name} = ?" for name in columns)
        rows = [
            db.execute(f"SELECT {select} FROM audit_anchors WHERE number = ?", (number,)).fetchone()
            for number in (one, two)
        ]
        for number, row in ((one, rows[1]), (two, rows[0])):
            db.execute(f"UPDATE audit_anchors SET {update} WHERE number = ?", (*row, number))
    return [f"statement {one} of LoomDB|statement {two} of LoomDB"]


def strip_signature(victim: Victim) -> list[str]:
    number, _ = victim.rng.choice(victim.statements())
    with victim.database() as db:
        db.execute("UPDATE audit_anchors SET signature = NULL, keyid = NULL WHERE number = ?", (number,))
    return [f"statement {number} of LoomDB"]


def forge_statement(victim: Victim) -> list[str]:
    """A removal nobody signed, for the segments that are deleted with it."""
    chain = victim.home / "audit" / "cartpole" / "server-1-shadow"
    paths = segments(chain)
    gone = paths[: victim.rng.randint(1, len(paths) - 1)]
    last = orjson.loads([line for path in gone for line in lines(path)][-1])
    os.environ["LOOMRL_SIGNING_KEY"] = "/nowhere/key.pem"
    try:
        with LoomDB.open(f"sqlite:///{victim.home / 'loom.db'}") as db:
            ends = {"first_segment": gone[0].stem, "segment": gone[-1].stem, "first_sequence": 0}
            told = {"sequence": last["sequence"], "digest": last["hash"], "by": "gc", "reason": "no reason"}
            state(db, "removal", "cartpole/server-1-shadow", **ends, **told)
    finally:
        del os.environ["LOOMRL_SIGNING_KEY"]
    for path in gone:
        path.unlink()
    return ["cartpole/server-1-shadow", "the removal of records 0 to", "is not signed"]


def steal_statement(victim: Victim) -> list[str]:
    """The signed removal of one chain, put down for another."""
    with victim.database() as db:
        (row,) = db.execute("SELECT payload, signature, keyid FROM audit_anchors WHERE kind = 'removal'").fetchall()
        ((number, digest),) = db.execute(
            "SELECT number, digest FROM audit_anchors ORDER BY number DESC LIMIT 1"
        ).fetchall()
        payload = row[0].replace("cartpole/server-0", "cartpole/server-1-shadow")
        told = orjson.loads(payload) | {"number": number + 1, "previous": digest}
        forged = orjson.dumps(told, option=orjson.OPT_SORT_KEYS).decode()
        values = (number + 1, "cartpole/server-1-shadow", "removal", forged, sha256(f"{forged}\n{row[1]}".encode()))
        db.execute("INSERT INTO audit_anchors VALUES (?, ?, ?, ?, ?, ?, ?)", (*values, row[1], row[2]))
    segments(victim.home / "audit" / "cartpole" / "server-1-shadow")[0].unlink()
    return ["cartpole/server-1-shadow", "cannot be relied on"]


def forge_list(victim: Victim) -> list[str]:
    """A whole new list of statements, for chains of which some segments are gone, with signatures of nobody."""
    chain = victim.home / "audit" / "cartpole" / "server-1-shadow"
    gone = segments(chain)[:2]
    last = orjson.loads([line for path in gone for line in lines(path)][-1])
    with victim.database() as db:
        rows = db.execute("SELECT number, server, kind, payload FROM audit_anchors ORDER BY number").fetchall()
        told = [(server, kind, orjson.loads(payload)) for _, server, kind, payload in rows]
        ends = {"first_segment": gone[0].stem, "segment": gone[-1].stem, "first_sequence": 0}
        removal = {**ends, "sequence": last["sequence"], "digest": last["hash"], "kind": "removal", "by": "gc"}
        told.append(
            ("cartpole/server-1-shadow", "removal", told[0][2] | removal | {"server": "cartpole/server-1-shadow"})
        )
        db.execute("DELETE FROM audit_anchors")
        previous, signature = GENESIS, "AAAA" * 21 + "AA=="
        keyid = victim.rng.choice((None, "0" * 64))
        for number, (server, kind, one) in enumerate(told, start=1):
            payload = orjson.dumps(one | {"number": number, "previous": previous}, option=orjson.OPT_SORT_KEYS).decode()
            previous = sha256(f"{payload}\n{signature}".encode())
            values = (number, server, kind, payload, previous, signature, keyid)
            db.execute("INSERT INTO audit_anchors VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    for path in gone:
        path.unlink()
    return ["cartpole/server-1-shadow", "cannot be relied on"]


def put_file(victim: Victim) -> list[str]:
    """A file beside the segments, named as if it were one, or a folder in the place of one."""
    path = segments(victim.chain())[-1]
    name = victim.rng.choice(("1abc.jsonl", "000009.jsonl", path.name))
    if name == path.name:
        path.unlink()
        path.mkdir()
        return [f"cartpole/{path.parent.name}", path.name]
    shutil.copy(path, path.with_name(name))
    return [f"cartpole/{path.parent.name}", name]


def forge_line(victim: Victim) -> list[str]:
    """Lines that have a hash and are no records."""
    path, whole, index = _record(victim)
    odd = victim.rng.choice(
        ({}, {"sequence": "x", "kind": "open"}, {"sequence": None}, {"sequence": 1e300, "kind": []})
    )
    whole.insert(index, seal(dict(odd), GENESIS)[0])
    path.write_bytes(b"".join(whole))
    return [f"cartpole/{path.parent.name}", f"{path.name}:{index + 1}"]


MANIPULATIONS: tuple[Manipulation, ...] = (
    delete_segments, delete_chain, truncate, cut_segment, delete_record, reorder_records, duplicate_record,
    insert_foreign_record, flip_bit, flip_bit_in_parquet, edit_record, edit_with_new_hash, rewrite_from_here,
    swap_segments, swap_chains, replace_chain, forge_chain, restore_old_chain, swap_forms, delete_statement,
    delete_statements_of_chain, roll_back_statements, edit_statement, swap_statements, strip_signature, forge_statement,
    steal_statement, forge_list, put_file, forge_line,
)  # fmt: skip


def _record(victim: Victim, another: Path | None = None) -> tuple[Path, list[bytes], int]:
    """A plain segment, its lines and the place of one of them; of another chain than the one that is given."""
    while (path := victim.plain()).parent == another:
        pass
    whole = path.read_bytes().splitlines(keepends=True)
    return path, whole, victim.rng.randrange(len(whole))


def _two(victim: Victim, ones: list[Path], others: list[Path]) -> tuple[Path, Path]:
    """Two different files of one kind."""
    while True:
        one, two = victim.rng.choice(ones), victim.rng.choice(others)
        if one != two and one.suffix == two.suffix:
            return one, two


def _swap(one: Path, two: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


def _last_named(victim: Victim) -> int:
    """The newest statement that a record of a chain names."""
    named_ones = (
        orjson.loads(line)["number"]
        for chain in victim.chains
        for path in segments(chain)
        for line in lines(path)
        if line.startswith(b'{"kind":"anchored"')
    )
    return max(named_ones)


@contextmanager
def at_home(home: Path) -> Iterator[None]:
    """Work with this home."""
    before = {name: os.environ.pop(name, None) for name in ("LOOMRL_HOME", "LOOMRL_DATABASE_URL", "LOOMRL_SIGNING_KEY")}
    os.environ["LOOMRL_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["LOOMRL_HOME"]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def verified() -> AuditReport:
    """What `loomrl audit verify --signed` finds."""
    with LoomDB.open() as db:
        return verify_all(db, demand_signed=True)


def attempt(original: Path, number: int, seed: int) -> dict[str, Any]:
    """One manipulation of a copy: what it was, whether it was found, and whether it was named."""
    manipulation = MANIPULATIONS[number % len(MANIPULATIONS)]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        shutil.copytree(original, home)
        with at_home(home):
            before = _contents(home)
            words = manipulation(Victim(home, random.Random(f"{seed}/{number}")))
            if _contents(home) == before:
                return {"kind": manipulation.__name__, "changed": False}
            found = verified().all_findings()
    said = "\n".join(found)
    is_named = all(any(one in said for one in word.split("|")) for word in words)
    return {"kind": manipulation.__name__, "changed": True, "found": bool(found), "named": bool(found) and is_named} | (
        {} if found and is_named else {"number": number, "words": words, "findings": found}
    )


def _contents(home: Path) -> dict[str, bytes]:
    with closing(sqlite3.connect(home / "loom.db")) as db:
        rows = db.execute("SELECT * FROM audit_anchors ORDER BY number").fetchall()
    files = sorted(
        path for path in (home / "audit").rglob("*") if path.is_file() and path.suffix in (".jsonl", ".parquet")
    )
    return {"LoomDB": repr(rows).encode()} | {str(path.relative_to(home)): path.read_bytes() for path in files}


@contextmanager
def original_home() -> Iterator[Path]:
    """What is manipulated; whole before."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir()
        with at_home(home):
            build(home)
            report = verified()
        if not report.intact or not report.num_statements:
            raise AssertionError(f"not whole before anything is done: {report.all_findings()}")
        with closing(sqlite3.connect(home / "loom.db")) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        yield home


def count(attempts: list[dict[str, Any]]) -> dict[str, Any]:
    """How many of each kind were made, found and named, and those that were not."""
    made = [one for one in attempts if one["changed"]]
    kinds = {
        kind: {name: sum(one[name] for one in made if one["kind"] == kind) for name in ("changed", "found", "named")}
        for kind in sorted({one["kind"] for one in attempts})
    }
    return {"kinds": kinds, "missed": [one for one in made if not one["named"]]}


def main() -> int:
    """Run all parts that are not kept, or a sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, help="a sample of so many, not kept")
    parser.add_argument("--seed", type=int, default=SEED)
    options = parser.parse_args()
    with original_home() as original:
        if options.count:
            found = [count([attempt(original, number, options.seed) for number in range(options.count)])]
        else:
            found = []
            store = Store(RESULTS, ROOT)
            for first in range(0, COUNT, PART):
                numbers = range(first, first + PART)
                make = lambda n=numbers: count([attempt(original, number, SEED) for number in n])  # noqa: E731
                found.append(store.made(f"{first} to {first + PART - 1}", SOURCES, make))
                print(f"{first + PART} of {COUNT}", flush=True)
    return report(found)


def report(parts: list[dict[str, Any]]) -> int:
    """Print the sums; 1 when any was missed."""
    totals: Counter[str] = Counter()
    for part in parts:
        for kind, numbers in part["kinds"].items():
            totals.update({f"{kind} {name}": value for name, value in numbers.items()})
            totals.update(numbers)
    for kind in sorted({kind for part in parts for kind in part["kinds"]}):
        print(f"{kind:28}", *(f"{name} {totals[f'{kind} {name}']:4}" for name in ("changed", "found", "named")))
    print(f"{'all':28}", *(f"{name} {totals[name]:4}" for name in ("changed", "found", "named")))
    for one in (one for part in parts for one in part["missed"]):
        print(one)
    return int(any(part["missed"] for part in parts))


if __name__ == "__main__":
    sys.exit(main())
