"""How one server runs, and where it finds policies."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from loomrl.errors import ConfigError
from loomrl.serving.config import ExplorationConfig
from loomrl.serving.decisions.requests import MAX_ROWS
from loomrl.serving.policy.sources import FolderSource, PolicySource, RegistrySource
from loomrl.system.names import checked_name

TOKEN_RATE, TOTAL_RATE = 20_000.0, 50_000.0  # where nothing else is said: what a process answers one by one, and more


@dataclass(frozen=True)
class ServerSettings:
    """How one server runs. `champion` and `challenger` pin versions; `folders` serves folders without a registry.

    `require_signature` None demands a signature of what the registry holds, and not of a folder.
    """

    policy: str
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    champion: str | None = None
    challenger: str | None = None
    folders: dict[str, Path] = field(default_factory=dict)
    tracking_uri: str | None = None
    rate: float = 1_000.0  # decisions per second and agent
    burst: float | None = None
    token_rate: float | None = None  # decisions per second of all who show one token; None: 20,000, at least `rate`
    total_rate: float | None = None  # decisions per second of all agents together; None: 50,000, at least the others
    refresh_seconds: float = 0.5
    anchor_seconds: float = 5.0
    max_body_bytes: int = 4 * 2**20
    max_rows: int = MAX_ROWS  # decisions, or entries of feedback, in one request
    body_bytes_per_second: float = 4 * 2**20  # of bodies from 16 KiB on that are refused, for each sender
    shadow_backlog_bytes: int = 16 * 2**20  # of the log, how much challengers may be behind
    shadow_hang_seconds: float = 5.0  # without an answer of a challenger; then its process is started again
    segment_bytes: int = 64 * 2**20
    durability: Literal["strict", "background"] = "background"  # strict: on the disk before the answer
    compact_seconds: float | None = None  # between compactions of closed segments; None: by hand
    seed: int | None = None  # of exploration; None takes the system's entropy
    exploration: ExplorationConfig | None = None  # for all versions, whatever their configs say
    server: str | None = None  # name of the audit chain; of several workers' chains NAME-0, NAME-1, ...
    workers: int = 1  # processes that answer on the port
    require_signature: bool | None = None

    def __post_init__(self) -> None:
        """Refuse what is no name, and bounds that bound nothing, before anything is read or written."""
        checked_name(self.policy, "policy")
        if self.server is not None:
            checked_name(self.server, "server")
        for name in ("max_body_bytes", "max_rows", "body_bytes_per_second"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: a number above 0")

    def rates(self) -> tuple[float, float | None, float, float]:
        """Decisions per second of an agent, how many it may save up, of all agents together, and of a token."""
        token_rate = self.token_rate if self.token_rate is not None else max(TOKEN_RATE, self.rate)
        total_rate = (
            self.total_rate if self.total_rate is not None else max(TOTAL_RATE, self.rate, self.token_rate or 0)
        )
        return self.rate, self.burst, total_rate, token_rate

    def source(self) -> PolicySource:
        """The source of policies that these settings name: folders, or the registry with the pinned versions."""
        if self.folders:
            return FolderSource(self.policy, self.folders, require_signature=self.require_signature is True)
        pinned = {"champion": self.champion, "challenger": self.challenger}
        versions = {role: version for role, version in pinned.items() if version is not None}
        return RegistrySource(
            self.policy, self.tracking_uri, versions, require_signature=self.require_signature is not False
        )
