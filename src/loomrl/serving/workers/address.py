"""Which of several workers a process is, and where it finds the others."""

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

MAX_WORKERS = 256  # two hex digits of every decision's id name the worker that made it

_OWNER = re.compile("[0-9a-f]{2}")


@dataclass(frozen=True)
class WorkerAddress:
    """One worker's place among those that answer on one port; handed down by their supervisor."""

    index: int
    count: int
    name: str  # of them all; each one's audit chain is `NAME-INDEX`
    folder: Path  # of the Unix sockets on which they ask each other
    supervisor: int  # its process id
    port: int  # file descriptors: of the port they all listen on,
    peer_listener: int  # and of the Unix socket on which the other workers send requests to this one
    agreement: Path  # what they share, in memory: by what they agree on champion and revision,
    limits: Path  # the rate limits they keep together,
    asking: Path  # and the tokens that ask for decisions

    @property
    def chains(self) -> list[str]:
        """The names of all workers' audit chains, by index."""
        return [chain_of(self.name, index) for index in range(self.count)]

    def owner_of_agent(self, agent_id: str) -> int:
        """The index of the worker that remembers an agent's episodes and named requests: the same after every
        restart.
        """
        return int.from_bytes(hashlib.blake2b(agent_id.encode(), digest_size=8).digest(), "big") % self.count

    def owner_of_decision(self, decision_id: str) -> int:
        """The index of the worker that made a decision; this one's where the decision's id names none."""
        if not _OWNER.match(decision_id):
            return self.index
        owner = int(decision_id[:2], 16)
        return owner if owner < self.count else self.index


def chain_of(name: str, index: int) -> str:
    """The name of the audit chain of the worker with this index."""
    return f"{name}-{index}"


def token_prefix(index: int) -> str:
    """Two hexadecimal digits that the ids of a worker's decisions begin with."""
    return f"{index:02x}"


def socket_folder(folder: Path) -> str:
    """A folder's path by a handle that stays open: the path of a Unix socket has room for 107 bytes."""
    return f"/proc/self/fd/{os.open(folder, os.O_PATH | os.O_DIRECTORY)}"


def socket_path(folder: str, index: int) -> str:
    """A worker's socket in the folder that `socket_folder` names."""
    return f"{folder}/{index}.sock"
