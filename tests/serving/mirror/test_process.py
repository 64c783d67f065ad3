"""Challengers that crash, hang, answer NaN, are slow or are killed: agents notice nothing, the log says it all."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from loomrl.serving.client import Ask, PolicyClient
from loomrl.serving.mirror import process as shadow_process
from loomrl.serving.mirror.process import MOST_FAILURES, Shadow
from loomrl.serving.mirror.state import ShadowState, StatePage
from loomrl.serving.policy.model import ServedPolicy
from loomrl.serving.process import ServerProcess
from loomrl.storage.audit.heads import newest_head
from loomrl.storage.audit.history import join, records
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import decisions
from loomrl.storage.audit.verification import verify_chain
from loomrl.storage.loomdb.database import LoomDB
from tests.support.faulty_policies import TRIGGER, Fault, faulty_folder
from tests.support.inside import wait_for
from tests.support.live import decide
from tests.support.policies import BALANCING, OBSERVATIONS, discrete_folder

BAD = np.array([2 * TRIGGER, 0, 0, 0], dtype=np.float32)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def mirrors(agent_id: str | None = None) -> list[dict[str, Any]]:
    return [one for one in records("cartpole") if one["kind"] == "shadow" and agent_id in (None, one["agent_id"])]


@pytest.fixture
def champion(tmp_path: Path) -> Path:
    return discrete_folder(tmp_path / "champion")


def with_challenger(champion: Path, folder: Path, fault: Fault | None = None, **options: Any) -> ServerProcess:
    """A server whose challenger does the opposite and perhaps has a fault."""
    challenger = discrete_folder(folder / "challenger", -BALANCING)
    if fault is not None:
        challenger = faulty_folder(folder / fault, challenger, fault)
    return ServerProcess("cartpole", champion_folder=champion, challenger_folder=challenger, rate=1e6, **options)


def ask(client: PolicyClient, agent_id: str, observations: np.ndarray) -> list[Any]:
    return [one.action for one in client.decide_many([Ask(agent_id, observation) for observation in observations])]


def settled(client: PolicyClient) -> bool:
    return client.status()["shadow"]["num_pending"] == 0


@pytest.mark.parametrize("fault", ["crash", "hang", "nan", "slow"])
@pytest.mark.long_cases("hang", "nan", "slow")
def test_a_faulty_challenger_changes_no_answer_and_is_on_record(
    fault: Fault, loomrl_home: Path, tmp_path: Path, champion: Path
) -> None:
    sound = np.concatenate([OBSERVATIONS] * 4)
    expected = ServedPolicy.load(champion)
    with (
        with_challenger(champion, tmp_path, fault, shadow_hang_seconds=2.0) as server,
        server.client() as client,
    ):
        assert ask(client, "before", sound) == expected(sound).tolist()
        wait_for(lambda: settled(client))
        assert ask(client, "bad", BAD[None]) == expected(BAD[None]).tolist()
        wait_for(lambda: settled(client))
        assert ask(client, "after", sound) == expected(sound).tolist()
        wait_for(lambda: settled(client))
        state = client.status()["shadow"]
    assert [one["action"] for one in mirrors("before") + mirrors("after")] == (1 - np.tile(expected(sound), 2)).tolist()
    (bad,) = mirrors("bad")
    reasons = {"crash": "signal SIGFPE", "hang": "no answer for", "nan": "not finite", "slow": ""}
    assert bad["error"] is None if fault == "slow" else reasons[fault] in bad["error"]
    assert state["num_errors"] == (fault != "slow")
    assert state["num_restarts"] == (fault in ("crash", "hang"))
    assert state["num_mirrored"] + state["num_errors"] == 2 * len(sound) + 1
    for folder in (loomrl_home / "audit" / "cartpole").iterdir():
        assert verify_chain(folder).intact


def test_what_is_asked_at_once_stands_in_one_record_and_reads_as_single_ones(
    loomrl_home: Path, tmp_path: Path, champion: Path
) -> None:
    observations = np.concatenate([OBSERVATIONS, 10 * OBSERVATIONS])
    with with_challenger(champion, tmp_path, "nan") as server, server.client() as client:
        ask(client, "alone", observations[3:4])
        wait_for(lambda: settled(client))
        ask(client, "together", observations)
        wait_for(lambda: settled(client))
        ask(client, "one-bad", np.concatenate([observations[:5], BAD[None], observations[5:]]))
        wait_for(lambda: settled(client))
        state, told = client.status()["shadow"], client.shadow_records()
    (alone,), together, (*good, bad) = mirrors("alone"), mirrors("together"), sorted(mirrors("one-bad"), key=is_bad)
    assert [one["error"] is None for one in good] == [True] * len(observations)
    assert "not finite" in bad["error"]
    assert bad["decision_id"].endswith(".5")
    assert {one["sequence"] for one in together} == {alone["sequence"] + 1}
    assert [one["row"] for one in together] == list(range(len(observations)))
    when = ("timestamp", "seconds", "agent_id", "decision_id", "row", "sequence", "previous_hash", "hash")
    single, several = ({key: one[key] for key in one.keys() - set(when)} for one in (alone, together[3]))
    assert several == single
    decided = {one["decision_id"]: one["challengers"] for one in join(records("cartpole"))}
    assert all(decided[one["decision_id"]] == {one["version"]: one["action"]} for one in (alone, *together, bad))
    assert [one for one in told if one["kind"] == "shadow"] == mirrors()
    assert (state["num_mirrored"], state["num_errors"]) == (1 + 2 * len(observations), 1)


def is_bad(mirror: dict[str, Any]) -> bool:
    return mirror["error"] is not None


@pytest.mark.long  # a challenger that ends its own process is replaced alike: `...changes_no_answer...[crash]`
def test_a_killed_process_is_replaced(loomrl_home: Path, tmp_path: Path, champion: Path) -> None:
    with with_challenger(champion, tmp_path) as server, server.client() as client:
        ask(client, "before", OBSERVATIONS)
        wait_for(lambda: settled(client))
        former = client.status()["shadow"]["pid"]
        os.kill(former, signal.SIGKILL)
        ask(client, "meanwhile", OBSERVATIONS)
        wait_for(lambda: client.status()["shadow"]["pid"] not in (None, former) and settled(client))
        state = client.status()["shadow"]
    assert state["num_restarts"] == 1
    assert state["refused"] == []
    assert len(mirrors()) == 2 * len(OBSERVATIONS)


def test_what_a_slow_challenger_misses_is_counted(loomrl_home: Path, tmp_path: Path, champion: Path) -> None:
    expected = ServedPolicy.load(champion)(OBSERVATIONS).tolist()
    with with_challenger(champion, tmp_path, "slow", shadow_backlog_bytes=20_000) as server, server.client() as client:
        ask(client, "a", OBSERVATIONS)
        wait_for(lambda: settled(client))
        os.kill(client.status()["shadow"]["pid"], signal.SIGSTOP)  # as slow as can be
        for _ in range(100):
            assert ask(client, "a", OBSERVATIONS) == expected
        os.kill(client.status()["shadow"]["pid"], signal.SIGCONT)
        wait_for(lambda: settled(client))
        state = client.status()["shadow"]
        metrics = httpx.get(f"{server.url}/metrics").text
    assert state["num_dropped"] > 0
    assert state["num_mirrored"] + state["num_dropped"] == 101 * len(OBSERVATIONS)
    assert len(mirrors()) == state["num_mirrored"]
    assert f"loomrl_shadow_dropped {float(state['num_dropped'])}" in metrics


def test_sigterm_ends_the_process_after_the_last_mirror(loomrl_home: Path, tmp_path: Path, champion: Path) -> None:
    with with_challenger(champion, tmp_path) as server, server.client() as client:
        wait_for(lambda: client.status()["shadow"]["pid"] is not None)
        pid = client.status()["shadow"]["pid"]
        ask(client, "a", OBSERVATIONS)
        assert server.stop() == 0
    assert not is_running(pid)
    assert len(mirrors()) == len(OBSERVATIONS)
    report = verify_chain(loomrl_home / "audit" / "cartpole" / "server-0-shadow")
    with LoomDB.open() as database:
        head = newest_head(database, "cartpole/server-0-shadow")
    assert report.intact
    assert head is not None
    assert (report.head_sequence, report.head_digest) == (head.sequence, head.digest)


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.long_cases("False")
def test_no_process_outlives_a_server_that_is_killed(
    stopped: bool, loomrl_home: Path, tmp_path: Path, champion: Path
) -> None:
    with with_challenger(champion, tmp_path) as server, server.client() as client:
        ask(client, "a", OBSERVATIONS)
        wait_for(lambda: settled(client))
        pid = client.status()["shadow"]["pid"]
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        os.kill(server.process.pid, signal.SIGKILL)
        wait_for(lambda: not is_running(pid))


@pytest.mark.long  # challengers come and go below, and their processes with them
def test_without_a_challenger_there_is_no_process(loomrl_home: Path, champion: Path) -> None:
    with ServerProcess("cartpole", champion_folder=champion) as server, server.client() as client:
        client.decide("a", OBSERVATIONS[0])
        state = client.status()["shadow"]
    assert (state["pid"], state["num_pending"], state["sequence"]) == (None, 0, -1)
    assert not (loomrl_home / "audit" / "cartpole" / "server-0-shadow").exists()


# --- the watching part alone ------------------------------------------------------------------------------------


class Watched:
    """A shadow of a log that a test writes itself; `challengers` may change."""

    def __init__(self, *folders: Path, hang_seconds: float = 5.0, backlog_bytes: int = 2**24) -> None:
        self.log = AuditLog("cartpole")
        self.challengers = [ServedPolicy.load(folder, folder.name) for folder in folders]
        self.shadow = Shadow(self.log, lambda: self.challengers, backlog_bytes, hang_seconds)
        self.shadow.start()

    def decide(self, observation: np.ndarray, **changes: Any) -> None:
        """Put a decision on record and wait until challengers, where there are any, have come to it."""
        decide(self.log, "a", None, observation.tolist(), version="acting", **changes)
        wait_for(lambda: self.shadow.num_pending == 0)

    def decide_together(self, observations: np.ndarray) -> None:
        """The same for several decisions in one record."""
        count = len(observations)
        names = {"agent_id": ["a"] * count, "episode_id": [None] * count, "exploration_flag": [False] * count}
        chosen = {"observation": observations, "action": np.ones(count, np.int64), "value": np.zeros(count)}
        dtypes = {"observation": "float32", "action": "int64"}
        shared = {"count": count, "dtypes": dtypes, "version": "acting", "role": "champion", "override": None}
        self.log.append([decisions(shared, names | chosen)])
        wait_for(lambda: self.shadow.num_pending == 0)


@pytest.fixture
def watch(loomrl_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Watched]]:
    monkeypatch.setattr(shadow_process, "_FIRST_PAUSE", 0.01)
    watched: list[Watched] = []

    def begin(*folders: Path, **options: Any) -> Watched:
        watched.append(Watched(*folders, **options))
        return watched[-1]

    yield begin
    for one in watched:
        one.shadow.stop()


def test_a_challenger_that_fails_again_and_again_is_refused_and_no_other(watch, tmp_path: Path, champion: Path) -> None:
    crashing = faulty_folder(tmp_path / "crashing", champion, "crash")
    watched = watch(crashing, discrete_folder(tmp_path / "sound", value=2.0))
    for _ in range(MOST_FAILURES + 1):
        watched.decide(BAD)
    shadow = watched.shadow
    assert [version for version, _ in shadow.refused] == ["crashing"]
    assert all("SIGFPE" in reason for reason in shadow.refused.values())
    assert shadow.num_restarts == MOST_FAILURES
    watched.challengers.pop(0)
    wait_for(lambda: not shadow.refused)  # what is no challenger any more is forgotten
    shadow.stop()
    versions = [(one["version"], one["error"] is None) for one in mirrors()]
    assert versions.count(("crashing", False)) == shadow.state.num_errors == MOST_FAILURES
    assert versions.count(("sound", True)) == shadow.state.num_mirrored
    assert shadow.state.num_mirrored + shadow.state.num_dropped == MOST_FAILURES + 1  # what was in hand at a crash


@pytest.mark.long  # the one above has all failures but the last on record
def test_the_last_refused_challengers_failure_is_on_record_too(watch, tmp_path: Path, champion: Path) -> None:
    watched = watch(faulty_folder(tmp_path / "crashing", champion, "crash"))
    for _ in range(MOST_FAILURES):
        watched.decide(BAD)
    wait_for(lambda: watched.shadow.pid is None and len(mirrors()) == MOST_FAILURES)
    assert watched.shadow.num_pending == 0


def test_a_failure_late_in_a_long_log_is_on_record(watch, tmp_path: Path, champion: Path) -> None:
    watched = watch(faulty_folder(tmp_path / "crashing", champion, "crash"), backlog_bytes=100_000)
    for _ in range(10):
        watched.decide(np.tile(OBSERVATIONS[0], 1_000), override={"id": "1"})  # a person's, of 10 kB each
    watched.decide(BAD)
    watched.decide(OBSERVATIONS[0])
    watched.shadow.stop()
    assert [one["error"] is None for one in mirrors()] == [False, True]
    state = watched.shadow.state
    assert (state.num_errors, state.num_mirrored, state.num_dropped, watched.shadow.num_restarts) == (1, 1, 0, 1)


def test_of_one_record_no_more_is_asked_at_once_than_a_slow_challenger_answers(
    watch, tmp_path: Path, champion: Path
) -> None:
    """Each question counts as work: who is asked again for the halves of what failed does not hang."""
    watched = watch(faulty_folder(tmp_path / "faulty", champion, "nan"))
    watched.decide_together(np.concatenate([BAD[None], np.zeros((63, 4), np.float32)]))
    halvings = 6
    assert watched.shadow.state.num_asked == 1 + 2 * halvings
    watched.decide_together(np.zeros((1_025, 4), np.float32))
    state = watched.shadow.state
    assert state.num_asked == 1 + 2 * halvings + 2
    assert (state.num_errors, state.num_mirrored) == (1, 63 + 1_025)


def test_challengers_come_and_go(watch, tmp_path: Path) -> None:
    first, second = (discrete_folder(tmp_path / name, value=float(name)) for name in ("1", "2"))
    watched = watch(first)
    watched.decide(OBSERVATIONS[0])
    pid = watched.shadow.pid
    watched.challengers.append(ServedPolicy.load(second, "2"))
    wait_for(lambda: len(watched.shadow._told) == 2)
    watched.decide(OBSERVATIONS[1])
    assert watched.shadow.pid == pid
    watched.challengers.clear()
    wait_for(lambda: watched.shadow.pid is None)
    watched.decide(OBSERVATIONS[2])
    wait_for(lambda: watched.shadow.state.settled == watched.log.head.sequence)  # seen, and nobody's to answer
    watched.challengers.append(ServedPolicy.load(second, "2"))
    watched.decide(OBSERVATIONS[3])
    watched.shadow.stop()
    observed = {one["decision_id"]: one["observation"] for one in records("cartpole") if one["kind"] == "decision"}
    told = [(one["version"], observed[one["decision_id"]]) for one in mirrors()]
    rows = OBSERVATIONS.tolist()
    assert [pair for pair in told if pair[1] != rows[1]] == [("1", rows[0]), ("2", rows[3])]
    assert ("1", rows[1]) in told  # the second may have come a moment later


def test_a_persons_and_a_random_choice_are_not_mirrored(watch, champion: Path) -> None:
    watched = watch(champion)
    watched.decide(OBSERVATIONS[0], override={"id": "1"})
    watched.decide(OBSERVATIONS[0], exploration_flag=True)
    watched.decide(OBSERVATIONS[1])
    watched.shadow.stop()
    (mirror,) = mirrors()
    assert mirror["q_value"] == pytest.approx(OBSERVATIONS[1].sum() + 1.0, rel=1e-5)


def test_a_folder_that_was_changed_since_is_not_run(watch, tmp_path: Path, champion: Path) -> None:
    folder = discrete_folder(tmp_path / "challenger")
    watched = watch(folder)
    discrete_folder(folder, value=9.0)  # verifies, but is not what the server holds
    watched.decide(OBSERVATIONS[0])
    wait_for(lambda: bool(watched.shadow.refused))
    assert "no longer holds the graph" in next(iter(watched.shadow.refused.values()))
    assert mirrors() == []


def test_a_process_that_stands_still_is_replaced(watch, champion: Path) -> None:
    watched = watch(champion, hang_seconds=1.0)
    watched.decide(OBSERVATIONS[0])
    os.kill(watched.shadow.pid, signal.SIGSTOP)
    watched.decide(OBSERVATIONS[1])
    assert watched.shadow.num_restarts == 1
    assert not watched.shadow.refused
    watched.shadow.stop()
    assert [one["error"] for one in mirrors()] == [None, None]


def test_a_state_is_read_as_it_was_written_and_fits_into_a_page() -> None:
    page = StatePage.create(ShadowState(settled=3))
    state = ShadowState(settled=4, until=9, waiting=[2, 3], num_mirrored=5, last_error='"\n\0', head={"sequence": 1})
    page.write(state)
    assert page.read() == state
    with pytest.raises(ValueError, match="one page"):
        page.write(ShadowState(settled=4, last_error="x" * 5_000))
    assert page.read() == state
