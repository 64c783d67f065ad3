"""A hub that is started again whenever it is killed, at an address that never goes away.

The parent holds the socket and does nothing else. While the child is gone, connections are made and wait: environments,
which give up after a few seconds without a server, notice a pause.
"""

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from types import FrameType

from loomrl.errors import LoomRLError
from loomrl.system.lifetime import be_killed_with_parent

log = logging.getLogger(__name__)
_MIN_SECONDS = 1.0  # between two starts


def run_supervised(run: Callable[[], None]) -> int:
    """Call `run` in a child process, and again, in a new one, whenever a signal ends the child; returns the exit code
    with which the child ended by itself.

    SIGTERM and SIGINT to this process end the child with SIGTERM, and no other is started; 0 is returned where the
    signal ended it. This process keeps its handlers of both afterwards. A `LoomRLError` of `run` is printed by the
    child, which ends with the error's exit code; of any other exception the traceback, and the exit code is 1.

    Raises:
        OSError: when no child process can be made.
    """
    child, must_stop = 0, False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal must_stop
        must_stop = True
        if child:
            os.kill(child, signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    while True:
        started = time.monotonic()
        child = _start(run)
        if must_stop:
            os.kill(child, signal.SIGTERM)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        child = 0
        if must_stop or code >= 0:
            return max(code, 0)
        log.error("the hub was ended by signal %d and is started again", -code)
        time.sleep(max(0.0, started + _MIN_SECONDS - time.monotonic()))


def _start(run: Callable[[], None]) -> int:
    parent = os.getpid()
    if child := os.fork():
        return child
    code = 0
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        be_killed_with_parent(parent)
        run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except LoomRLError as error:
        print(f"hub: {error}", file=sys.stderr)
        code = error.exit_code
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
        traceback.print_exc()
        code = 1
    finally:
        logging.shutdown()
        os._exit(code)
