"""How a hub is run: where, how much it holds, and which groups and environments it takes."""

import math
from dataclasses import dataclass

from loomrl.errors import ConfigError

MIB = 2**20


@dataclass(frozen=True)
class HubSettings:
    """The options of `loomrl hub serve`, with underscores."""

    host: str = "127.0.0.1"
    port: int = 8000  # where unmodified environments and trainers look
    database_url: str | None = None  # default: `LOOMRL_HUB_DATABASE_URL`, else SQLite under the home
    max_body_bytes: int = 64 * MIB  # of one request, unpacked
    max_pending_bytes: int = 256 * MIB  # of requests that are being read
    memory_bytes: int = 64 * MIB  # of waiting groups, compressed; others wait in the database alone
    max_waiting_bytes: int = 16 * 1024 * MIB  # of waiting groups, as JSON
    max_waiting_groups: int = 200_000
    max_buffered_groups: int = 1_000  # of one environment, that add up to no whole group
    silent_seconds: float = 60.0  # without a word from an environment until its share of batches is let go
    starved_seconds: float = 600.0  # without a group from an environment that talks, likewise
    stuck_seconds: float = 60.0  # until a group of a size that divides no batch is left out of packing
    max_rejections: int = 20  # in a row, until an environment counts as failing
    retry_seconds: float = 120.0  # in which an unanswered request may come again
    equal_once: bool = False  # equal bodies within that time are one, answered or not
    lowest_score: float = -math.inf  # scores beyond these are cut to them
    highest_score: float = math.inf
    max_sequence_tokens: int | None = None
    max_staleness: int | None = None  # policy versions between making a group and training on it

    def __post_init__(self) -> None:
        if not self.lowest_score < self.highest_score:
            raise ConfigError(
                f"--lowest-score {self.lowest_score:g} must lie below --highest-score {self.highest_score:g}"
            )
        for name in ("max_body_bytes", "max_waiting_bytes", "max_waiting_groups", "silent_seconds", "starved_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: a number above 0")
