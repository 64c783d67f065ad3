"""How an inference engine is served: where, what, and how much it takes at once."""

from dataclasses import dataclass
from pathlib import Path

from loomrl.errors import ConfigError

MIB = 2**20


@dataclass(frozen=True)
class EngineSettings:
    """The options of `loomrl engine serve`, with underscores."""

    policy: Path  # a folder with a language policy, or a model of Hugging Face's
    host: str = "127.0.0.1"
    port: int = 9_001  # where unmodified environments are told to look, by their examples
    version: int = 0  # of that policy
    max_running: int = 64  # completions decoded at once
    max_waiting: int = 16_384  # completions that wait for their turn
    max_body_bytes: int = 64 * MIB  # of one request, unpacked; weights may come in one
    max_prompt_bytes: int = 4 * MIB  # of one request for completions: reading more would keep others waiting
    max_pending_bytes: int = 256 * MIB  # of requests that are being read
    seed: int = 0  # of completions that have no seed of their own

    def __post_init__(self) -> None:
        for name in ("max_running", "max_waiting"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: a number from 1 on")
        for name in ("version", "seed"):
            if getattr(self, name) < 0:
                raise ConfigError(f"--{name} {getattr(self, name)}: a number from 0 on")
