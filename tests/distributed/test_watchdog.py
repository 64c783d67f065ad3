"""A process that hangs is ended, with the place it hangs at; one that waits for others, or lives, is not."""

import subprocess
import sys
import textwrap

from loomrl.errors import LoomRLError


def run(body: str, timeout_seconds: float = 0.5) -> "subprocess.CompletedProcess[str]":
    program = """
        import time
        from loomrl.distributed.watchdog import Watchdog

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


def test_whoever_waits_for_others_or_gives_signs_of_life_is_left_alone() -> None:
    ended = run(
        """
        with dog.at_rest():
            time.sleep(5)
        for _ in range(50):
            dog.alive()
            time.sleep(0.1)
        """,
        timeout_seconds=4,
    )
    assert (ended.returncode, ended.stdout) == (0, "done\n")
