"""`python -m loomrl.serving.supervision.worker`: one of several workers; their supervisor writes what it is to do to
its input.
"""

import logging
import socket
import sys

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from loomrl.errors import LoomRLError
from loomrl.serving.settings import ServerSettings
from loomrl.serving.uvicorn_server import GRACE_SECONDS, make, run
from loomrl.serving.workers.address import WorkerAddress
from loomrl.system.lifetime import die_with_parent


@dataclass(frozen=True)
class WorkerTask:
    """What the supervisor hands a worker at its start: its settings and its address."""

    settings: ServerSettings
    address: WorkerAddress


TASK = TypeAdapter(WorkerTask)


def main() -> int:
    """Serve as the worker that the input describes, until told to stop. Returns the exit code: 0, or that of the error
    that kept it from serving.
    """
    task = TASK.validate_json(sys.stdin.buffer.readline())
    address = task.address
    name = f"{task.settings.policy} worker {address.index}"
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {name} %(levelname)s %(message)s", stream=sys.stderr)
    for chatty in ("alembic", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    die_with_parent(parent=address.supervisor, grace_seconds=GRACE_SECONDS)
    try:
        server = make(task.settings, address)
    except LoomRLError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_code
    server.shared = socket.socket(fileno=address.port)
    run(server, [socket.socket(fileno=address.peer_listener)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
