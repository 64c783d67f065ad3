"""Orders that several processes set at once, on one host or two: in the end all agree, and on the right one.

Each process is a thread, and one at a time goes on, from one place where it could have to wait to the next: a query of
LoomDB, a file that is read or written, a lock. A seed draws who. What must stand in the end follows from what each
process had heard of when it ordered: what another was set with knowledge of is over; of the rest the strictest stands.
"""

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from loomrl.serving.controls.controls import Controls
from loomrl.serving.controls.order_store import OrderStore
from loomrl.serving.controls.plan import KillSwitch
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.loomdb.records import Control

NUM_SEEDS = 40
PATIENCE = 300.0  # seconds
STEPS = {
    LoomDB: ("add_control", "controls", "control_revisions", "num_controls"),
    Controls: ("_save", "_save_alone", "_put_in_force"),
    OrderStore: ("read", "write"),
}


class Scheduler:
    """Has one thread at a time go on, as far as its next step; a seed draws which."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.staying = 0.5 + 0.5 * self.random.random()  # how often the same one goes on
        self.turn = threading.Condition()
        self.running: set[str] = set()
        self.chosen: str | None = None

    def step(self, must_wait: bool = False) -> None:
        """Where another thread may come in between; does nothing in a thread that was not started by `run`."""
        name = threading.current_thread().name
        with self.turn:
            if name not in self.running or (not must_wait and self.random.random() < self.staying):
                return
            self._choose()
            assert self.turn.wait_for(lambda: self.chosen == name, PATIENCE)

    def run(self, works: Iterable[Callable[[], None]]) -> None:
        """Have all run to their ends."""
        failed: list[BaseException] = []

        def go(work: Callable[[], None]) -> None:
            name = threading.current_thread().name
            with self.turn:
                assert self.turn.wait_for(lambda: self.chosen == name, PATIENCE)
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - the test raises it
                failed.append(error)
            with self.turn:
                self.running.discard(name)
                self._choose()

        threads = [threading.Thread(target=go, args=[work], name=f"process {n}") for n, work in enumerate(works)]
        self.running = {thread.name for thread in threads}
        for thread in threads:
            thread.start()
        with self.turn:
            self._choose()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]

    def _choose(self) -> None:
        self.chosen = self.random.choice(sorted(self.running)) if self.running else None
        self.turn.notify_all()


class History:
    """What each process has heard of, and what each order was set with knowledge of."""

    def __init__(self) -> None:
        self.heard: dict[Controls, set[str]] = {}
        self.before: dict[str, set[str]] = {}
        self.orders: dict[str, Control] = {}

    def hear(self, controls: Controls, order: Control) -> None:
        heard = self.heard.setdefault(controls, set())
        identity = order.identity
        if identity not in self.before:  # it is set here, now
            self.before[identity], self.orders[identity] = set(heard), order
        heard |= {identity, *self.before[identity]}

    def is_on_in_the_end(self) -> bool:
        """Whether any order that nobody replaced turns the kill switch on."""
        over = set[str]().union(*self.before.values())
        return any(order.document is not None for one, order in self.orders.items() if one not in over)


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_in_the_end_the_strictest_stands_of_what_nobody_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng, scheduler, history = random.Random(1_000_000 + seed), Scheduler(seed), History()
    num_hosts = rng.choice([1, 2])
    steps_of(scheduler, monkeypatch)
    told_to(history, monkeypatch)
    with ExitStack() as stack:
        processes = []
        for number in range(rng.choice([2, 3])):
            monkeypatch.setenv("LOOMRL_HOME", str(tmp_path / str(number % num_hosts)))
            database = stack.enter_context(LoomDB.open(f"sqlite:///{tmp_path / 'loom.db'}"))
            processes.append((Controls("cartpole"), database))
        acts: list[list[str]] = [[] for _ in processes]
        for act in [
            *["on", "off"],
            *rng.sample(["on", "off"], rng.randrange(3)),
            *["exchange"] * 3,
            *["follow"] * 2,
        ]:
            rng.choice(acts).append(act)
        works = []
        for one, its_acts in zip(processes, acts, strict=True):
            rng.shuffle(its_acts)
            works.append(lambda one=one, its_acts=its_acts: [do(act, *one) for act in its_acts])
        scheduler.run(works)
        for one in processes * 3:
            do("exchange", *one)
            do("follow", *one)
        expected = history.is_on_in_the_end()
        assert [controls.orders.kill_switch is not None for controls, _ in processes] == [expected] * len(processes)
        (newest,) = processes[0][1].controls("cartpole")
        assert (newest.document is not None) == expected


def do(act: str, controls: Controls, database: LoomDB) -> None:
    if act == "exchange":
        controls._compared = -1e9  # it is time to compare
        controls.exchange(database)
    elif act == "follow":
        controls.follow()
    else:
        reason = str(random.random())
        switch = KillSwitch(person="Ada", reason=reason) if act == "on" else None
        controls.set_kill_switch(switch, "test", reason)


def told_to(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_force = Controls._put_in_force

    def put(self: Controls, arrived: Iterable[Control]) -> None:
        orders = list(arrived)
        for order in orders:
            history.hear(self, order)
        put_in_force(self, orders)

    monkeypatch.setattr(Controls, "_put_in_force", put)


def steps_of(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after each of them another process may come in; where one holds the file, others wait for it."""

    def with_steps(method: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*args: Any, **options: Any) -> Any:
            scheduler.step()
            result = method(*args, **options)
            scheduler.step()
            return result

        return stepping

    for owner, names in STEPS.items():
        for name in names:
            monkeypatch.setattr(owner, name, with_steps(getattr(owner, name)))
    exclusive, held = OrderStore.exclusive, set[Path]()

    @contextmanager
    def waited_for(self: OrderStore) -> Iterator[None]:
        scheduler.step()
        while self.path in held:
            scheduler.step(must_wait=True)
        held.add(self.path)
        try:
            with exclusive(self):
                yield
        finally:
            held.discard(self.path)

    monkeypatch.setattr(OrderStore, "exclusive", waited_for)
