"""How a hub is run: where, how much it holds, and which groups and environments it takes."""

import math
from dataclasses import dataclass
from typing import Annotated

from typer import Option

from loomrl.errors import ConfigError
from loomrl.system.http.options import Host, Port

MIB = 2**20


@dataclass(frozen=True)
class HubSettings:
    """The options of `loomrl hub serve`, with underscores.

    Attributes:
        max_body_bytes: of one request, unpacked.
        max_pending_bytes: of requests that are being read.
        memory_bytes: of waiting groups that are kept in memory, compressed; others wait in the database alone.
        max_waiting_bytes: of all waiting groups, as JSON.
        max_buffered_groups: of one environment, that add up to no whole group.
        max_rejections: in a row, until an environment counts as failing and its share of batches is let go.
        retry_seconds: in which an unanswered request may come again and is answered as before.
        max_sequence_tokens: None: sequences of any length are taken; `max_staleness` None: groups of any policy.

    Raises:
        ConfigError: where `lowest_score` does not lie below `highest_score`, or `max_body_bytes`, `max_waiting_bytes`,
            `max_waiting_groups`, `silent_seconds` or `starved_seconds` is not above 0.
    """

    host: Host = "127.0.0.1"
    port: Port = 8000  # where unmodified environments and trainers look
    database_url: Annotated[
        str | None, Option(help="Default: LOOMRL_HUB_DATABASE_URL, else SQLite under the home.")
    ] = None
    max_body_bytes: int = 64 * MIB
    max_pending_bytes: int = 256 * MIB
    memory_bytes: int = 64 * MIB
    max_waiting_bytes: int = 16 * 1024 * MIB
    max_waiting_groups: Annotated[int, Option(min=1, help="Beyond them posts are answered 503, to come again.")] = (
        200_000
    )
    max_buffered_groups: int = 1_000
    silent_seconds: Annotated[
        float, Option(help="Without a word from an environment until its share of batches is let go.")
    ] = 60.0
    starved_seconds: Annotated[float, Option(help="Without a group from an environment that talks, likewise.")] = 600.0
    stuck_seconds: Annotated[
        float, Option(min=0, help="Until a group of a size that divides no batch is left out of packing.")
    ] = 60.0
    max_rejections: int = 20
    retry_seconds: float = 120.0
    equal_once: Annotated[
        bool, Option("--equal-once", help="Equal posts within two minutes count once, whatever became of them.")
    ] = False
    lowest_score: Annotated[float, Option(help="Scores below are cut to it.")] = -math.inf
    highest_score: Annotated[float, Option(help="Scores above are cut to it.")] = math.inf
    max_sequence_tokens: Annotated[int | None, Option(min=1, help="Groups with a longer sequence are refused.")] = None
    max_staleness: Annotated[int | None, Option(min=0, help="Policy versions a group may be behind the trainer's.")] = (
        None
    )

    def __post_init__(self) -> None:
        if not self.lowest_score < self.highest_score:
            raise ConfigError(
                f"--lowest-score {self.lowest_score:g} must lie below --highest-score {self.highest_score:g}"
            )
        for name in ("max_body_bytes", "max_waiting_bytes", "max_waiting_groups", "silent_seconds", "starved_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: a number above 0")
