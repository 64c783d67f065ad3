"""A process that hangs is ended, with the place it hangs at; one that waits for others, or lives, is not."""

import subprocess
import sys
import textwrap

from loomrl.errors import LoomRLError


def run(body: str, timeout_seconds: float = 0.5) -> "subprocess.CompletedProcess[str]":
    program = """
        import time
        from loomrl.training.distributed.learners.watchdog import Watchdog

        def stuck_valve():
            time.sleep(600)

        with Watchdog(TIMEOUT, lambda message: print(message, flush=True)) as dog:
    """
    text = (
        textwrap.dedent(program.replace("TIMEOUT", str(timeout_seconds)))
        + textwrap.indent(textwrap.dedent(body), "    ")
        + "\nprint('done')"
    )
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False)


def test_a_hung_call_ends_the_process_and_is_named() -> None:
    ended = run("stuck_valve()")
    assert ended.returncode == LoomRLError.exit_code
    assert ended.stdout.startswith("no sign of life for 0.5 s (training.distributed.hang_timeout_seconds), in:")
    assert "in stuck_valve" in ended.stdout


def test_a_process_that_hangs_is_ended_where_nobody_hears_of_it() -> None:
    ended = run("dog._tell = lambda message: 1 / 0\nstuck_valve()")
    assert ended.returncode == LoomRLError.exit_code
    assert "done" not in ended.stdout


CLOCK = """
        from types import SimpleNamespace
        from loomrl.training.distributed.learners import watchdog

        now, looks, wait = [0.0], [0], dog._ended.wait
        watchdog.time = SimpleNamespace(monotonic=lambda: now[0])
        dog.alive()

        def look(seconds):
            looks[0] += 1
            return wait(0.001)

        def let_pass(seconds):
            now[0] += seconds
            seen = looks[0] + 2  # one look may have begun before
            while looks[0] < seen:
                time.sleep(0.001)

        dog._ended.wait = look
"""


def test_whoever_waits_for_others_or_gives_signs_of_life_is_left_alone() -> None:
    ended = run(
        CLOCK
        + """
        with dog.at_rest():
            let_pass(1_000_000)
        for _ in range(5):
            dog.alive()
            let_pass(3.9)
        print("alive", flush=True)
        let_pass(0.2)
        """,
        timeout_seconds=4,
    )
    assert ended.stdout.startswith("alive\nno sign of life for 4 s")  # by the same clock it is ended at last
    assert ended.returncode == LoomRLError.exit_code
