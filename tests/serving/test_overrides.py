"""The store of overrides, by itself."""

import threading
from pathlib import Path

from loomrl.serving.overrides import Override, OverrideStore


class SlowStore(OverrideStore):
    """Pauses between reading the file and putting it in force, where a test says so."""

    paused: threading.Event | None = None
    go_on = threading.Event()

    def _read(self) -> list[Override]:
        found = super()._read()
        if self.paused is not None and threading.current_thread().name == "follower":
            self.paused.set()
            self.go_on.wait(5)
        return found


def override(action: int, agent_id: str | None = None) -> Override:
    return Override(action=action, agent_id=agent_id, person="Ada", reason="test")


def test_a_slow_follower_does_not_undo_what_was_set_meanwhile(loomrl_home: Path) -> None:
    store = SlowStore("cartpole")
    OverrideStore("cartpole").set(override(0))  # by the command line, say
    store.paused = threading.Event()
    follower = threading.Thread(target=store.refresh, name="follower")
    follower.start()
    assert store.paused.wait(5)
    route = threading.Thread(target=store.set, args=(override(1),))
    route.start()
    route.join(0.2)  # ends here only where nothing keeps it from overtaking the follower
    store.go_on.set()
    follower.join()
    route.join()
    assert [entry.action for entry in store.active()] == [1]
