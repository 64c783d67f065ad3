"""Runs a policy server: binds, says where, serves until it is told to stop; in this process, or in several."""

from pathlib import Path

from loomrl.errors import ConfigError
from loomrl.serving.settings import ServerSettings
from loomrl.serving.uvicorn_server import make, run
from loomrl.serving.workers.address import MAX_WORKERS
from loomrl.system.http.listening import bind
from loomrl.system.http.service import announce, tokens_for


def serve(settings: ServerSettings, port_file: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are answered first.

    `port_file` gets `{"url": ..., "pid": ...}` once the port is bound.

    Raises:
        ConfigError: when the address may be reached by others but there is no token, or for settings that are not
            valid.
        ServiceError: when the address cannot be bound, or one of several workers ends before it was ready.
        ArtifactError: when the audit chain, or a worker's folder, cannot be made or belongs to a running server, or
            no room can be reserved for orders.
    """
    tokens_for(settings.host, "override decisions")
    if not 1 <= settings.workers <= MAX_WORKERS:
        raise ConfigError(f"--workers {settings.workers}: from 1 to {MAX_WORKERS}")
    listener = bind(settings.host, settings.port)
    if settings.workers > 1:
        from loomrl.serving.supervision.supervisor import Supervisor

        with Supervisor(settings, listener) as supervisor:
            announce(settings.policy, listener, port_file)
            supervisor.run()
    else:
        server = make(settings, None)
        announce(settings.policy, listener, port_file)
        run(server, [listener])
