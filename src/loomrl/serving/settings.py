"""How one server runs, and where it finds policies; what is annotated as an option is one of `loomrl serve`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from loomrl.errors import ConfigError
from loomrl.serving.config import ExplorationConfig
from loomrl.system.http.options import Host, Port
from loomrl.system.names import checked_name

TOKEN_RATE, TOTAL_RATE = 20_000.0, 50_000.0  # where nothing else is said: what a process answers one by one, and more
MAX_ROWS = 8_192  # decisions, or entries of feedback, in one request
Pinned = Annotated[str | None, Option(help="Pin a version instead of following the alias.")]


@dataclass(frozen=True)
class ServerSettings:
    """How one server runs. `champion` and `challenger` pin versions; `folders` serves folders without a registry.

    `require_signature` None demands a signature of what the registry holds, and not of a folder.

    Raises:
        ConfigError: for a policy or server that is no name, and for a bound that is not above 0.
    """

    policy: Annotated[str, Option(help="The policy's name.")]
    host: Host = "127.0.0.1"
    port: Port = 8_100
    champion: Pinned = None
    challenger: Pinned = None
    folders: dict[str, Path] = field(default_factory=dict)  # by role; a command names each in an option of its own
    tracking_uri: str | None = None  # of the registry; no option: every command finds it in MLFLOW_TRACKING_URI
    rate: Annotated[float, Option(help="Decisions per second and agent.")] = 1_000.0
    burst: Annotated[float | None, Option(help="Decisions that an agent may save up; default: --rate.")] = None
    token_rate: Annotated[
        float | None, Option(help="Decisions per second of all who show one token; default: 20,000 or --rate.")
    ] = None
    total_rate: Annotated[
        float | None, Option(help="Decisions per second of all agents together; default: 50,000 or --rate.")
    ] = None
    refresh_seconds: Annotated[float, Option(help="Between looks at the registry.")] = 0.5
    anchor_seconds: Annotated[float, Option(help="Between anchors of the audit log's head in LoomDB.")] = 5.0
    max_body_bytes: Annotated[int, Option(help="Of one request, unpacked.")] = 4 * 2**20
    max_rows: Annotated[int, Option(help="Decisions, or entries of feedback, in one request.")] = MAX_ROWS
    body_bytes_per_second: Annotated[
        float, Option(help="Of bodies from 16 KiB on that are refused, for each sender.")
    ] = 4 * 2**20
    shadow_backlog_bytes: Annotated[int, Option(help="Of the log, how much challengers may be behind.")] = 16 * 2**20
    shadow_hang_seconds: Annotated[
        float, Option(help="Without an answer of a challenger; then its process is started again.")
    ] = 5.0
    segment_bytes: Annotated[int, Option(help="Of the audit log's files.")] = 64 * 2**20
    durability: Annotated[
        Literal["background", "strict"],
        Option(help="strict: answer when a decision is on the disk; background: synced within 20 ms."),
    ] = "background"
    compact_seconds: Annotated[
        float | None, Option(min=1, help="Compact closed segments of its audit log this often.")
    ] = None
    seed: Annotated[int | None, Option(help="Of exploration; default: the system's entropy.")] = None
    exploration: Annotated[
        ExplorationConfig | None,
        Option(
            "--explore",
            parser=ExplorationConfig.read,
            help="How, for all versions, such as kind=epsilon,epsilon=0.05,share=0.1.",
        ),
    ] = None
    server: Annotated[
        str | None,
        Option(envvar="LOOMRL_AUDIT_SERVER", help="Name of its audit chain; default: the first free."),
    ] = None  # of several workers' chains NAME-0, NAME-1, ...
    workers: Annotated[int, Option(help="Processes that answer on the port.")] = 1
    require_signature: Annotated[
        bool | None, Option(help="Refuse unsigned versions; default: those of the registry, not of a folder.")
    ] = None

    def __post_init__(self) -> None:
        """Refuse what is no name, and bounds that bound nothing, before anything is read or written."""
        checked_name(self.policy, "policy")
        if self.server is not None:
            checked_name(self.server, "server")
        for name in ("max_body_bytes", "max_rows", "body_bytes_per_second"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"--{name.replace('_', '-')} {getattr(self, name)}: a number above 0")

    def rates(self) -> tuple[float, float | None, float, float]:
        """The arguments of the rate limiter: decisions per second of an agent; how many it may save up, None for as
        many; decisions per second of all agents together; and those of a token.
        """
        token_rate = self.token_rate if self.token_rate is not None else max(TOKEN_RATE, self.rate)
        total_rate = (
            self.total_rate if self.total_rate is not None else max(TOTAL_RATE, self.rate, self.token_rate or 0)
        )
        return self.rate, self.burst, total_rate, token_rate
