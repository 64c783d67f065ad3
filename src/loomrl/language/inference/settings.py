"""How an inference engine is served: where, what, and how much it takes at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from loomrl.errors import ConfigError
from loomrl.system.http.options import Host, Port

MIB = 2**20


@dataclass(frozen=True)
class EngineSettings:
    """The options of `loomrl engine serve`, with underscores. Limits in bytes are of one request, unpacked
    (`max_body_bytes`, as weights may come in one), of one for completions (`max_prompt_bytes`), and of all that are
    being read at once (`max_pending_bytes`).

    Raises:
        ConfigError: where `max_running` or `max_waiting` is below 1, or `version` or `seed` below 0.
    """

    policy: Annotated[Path, Option(help="A folder with a language policy, or a model of Hugging Face's.")]
    host: Host = "127.0.0.1"
    port: Port = 9_001  # where unmodified environments are told to look, by their examples
    version: Annotated[int, Option(min=0, help="Of that policy.")] = 0
    max_running: Annotated[int, Option(min=1, help="Completions decoded at once.")] = 64
    max_waiting: Annotated[
        int, Option(min=1, help="Completions that wait for their turn; more are answered 503, to come again.")
    ] = 16_384
    max_body_bytes: int = 64 * MIB  # of one request, unpacked; weights may come in one
    max_prompt_bytes: int = 4 * MIB  # of one request for completions: reading more would keep others waiting
    max_pending_bytes: int = 256 * MIB  # of requests that are being read
    seed: Annotated[int, Option(min=0, help="Of completions that have no seed of their own.")] = 0

    def __post_init__(self) -> None:
        for name in ("max_running", "max_waiting"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: a number from 1 on")
        for name in ("version", "seed"):
            if getattr(self, name) < 0:
                raise ConfigError(f"--{name} {getattr(self, name)}: a number from 0 on")
