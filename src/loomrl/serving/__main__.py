"""`python -m loomrl.serving --policy NAME ...`: what `loomrl serve` runs, without the command line's other parts."""

import argparse
import logging
import sys
from pathlib import Path

from loomrl.errors import ConfigError, LoomRLError
from loomrl.serving.config import ExplorationConfig
from loomrl.serving.server import serve
from loomrl.serving.settings import ServerSettings
from loomrl.serving.uvicorn_server import GRACE_SECONDS
from loomrl.system.lifetime import die_with_parent


def main(arguments: list[str]) -> int:
    """Serve; the exit code is 0 after SIGTERM, else the error's."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    folders = {role: getattr(options, f"{role}_folder") for role in ("champion", "challenger")}
    settings = ServerSettings(
        policy=options.policy,
        host=options.host,
        port=options.port,
        champion=options.champion,
        challenger=options.challenger,
        folders={role: folder for role, folder in folders.items() if folder is not None},
        rate=options.rate,
        burst=options.burst,
        token_rate=options.token_rate,
        total_rate=options.total_rate,
        seed=options.seed,
        exploration=options.explore,
        refresh_seconds=options.refresh_seconds,
        anchor_seconds=options.anchor_seconds,
        max_body_bytes=options.max_body_bytes,
        max_rows=options.max_rows,
        body_bytes_per_second=options.body_bytes_per_second,
        shadow_backlog_bytes=options.shadow_backlog_bytes,
        shadow_hang_seconds=options.shadow_hang_seconds,
        segment_bytes=options.segment_bytes,
        server=options.server,
        workers=options.workers,
        durability=options.durability,
        compact_seconds=options.compact_seconds,
        require_signature=options.require_signature,
    )
    if options.die_with_parent is not None:
        die_with_parent(parent=options.die_with_parent, grace_seconds=GRACE_SECONDS)
    try:
        serve(settings, options.port_file)
    except LoomRLError as error:
        print(f"serve {options.policy}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    default = ServerSettings(policy="any")
    parser = argparse.ArgumentParser(prog="python -m loomrl.serving", description=__doc__)
    parser.add_argument("--policy", required=True)
    parser.add_argument("--host", default=default.host)
    parser.add_argument("--port", type=int, default=default.port)
    parser.add_argument("--champion", help="pin a version instead of following the alias")
    parser.add_argument("--challenger", help="pin a version instead of following the alias")
    parser.add_argument("--champion-folder", type=Path, help="serve an export folder, without a registry")
    parser.add_argument("--challenger-folder", type=Path)
    parser.add_argument("--rate", type=float, default=default.rate, help="decisions per second and agent")
    parser.add_argument("--burst", type=float)
    parser.add_argument("--token-rate", type=float, help="decisions per second of all who show one token")
    parser.add_argument("--total-rate", type=float, help="decisions per second of all agents together")
    parser.add_argument("--explore", type=_exploration, help="how, such as kind=epsilon,epsilon=0.05")
    parser.add_argument("--seed", type=int, help="of exploration; default: the system's entropy")
    parser.add_argument("--refresh-seconds", type=float, default=default.refresh_seconds)
    parser.add_argument("--anchor-seconds", type=float, default=default.anchor_seconds)
    parser.add_argument("--max-body-bytes", type=int, default=default.max_body_bytes)
    parser.add_argument("--max-rows", type=int, default=default.max_rows, help="decisions in one request")
    parser.add_argument("--body-bytes-per-second", type=float, default=default.body_bytes_per_second)
    parser.add_argument("--shadow-backlog-bytes", type=int, default=default.shadow_backlog_bytes)
    parser.add_argument("--shadow-hang-seconds", type=float, default=default.shadow_hang_seconds)
    parser.add_argument("--segment-bytes", type=int, default=default.segment_bytes)
    parser.add_argument("--durability", choices=("background", "strict"), default=default.durability)
    parser.add_argument("--compact-seconds", type=float, help="between compactions of closed segments; default: none")
    parser.add_argument("--server", help="name of the audit chain; default: the first that is free")
    parser.add_argument("--workers", type=int, default=default.workers, help="processes that answer on the port")
    parser.add_argument(
        "--require-signature",
        action=argparse.BooleanOptionalAction,
        help="refuse unsigned versions; default: those of the registry, not of a folder",
    )
    parser.add_argument("--die-with-parent", type=int, metavar="PID", help="end when this parent process is gone")
    parser.add_argument("--port-file", type=Path, help="gets the URL and the process id once bound")
    return parser


def _exploration(text: str) -> ExplorationConfig:
    try:
        return ExplorationConfig.read(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
