"""Serves an engine from this process: reads the policy, binds, says where, serves until it is told to stop."""

from pathlib import Path

import torch

from loomrl.language.inference.api.app import EngineServer
from loomrl.language.inference.settings import EngineSettings
from loomrl.system.http.service import listen, run_application, tokens_for


def serve(settings: EngineSettings, port_file: Path | None = None) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight are answered first.

    `port_file` gets `{"url": ..., "pid": ...}` once the port is bound.

    Raises:
        ConfigError: when the address may be reached by others but there is no token, or the policy is a Hugging Face
            model and `transformers` is not installed.
        ArtifactError: when the policy cannot be read.
        ServiceError: when the address cannot be bound.
    """
    torch.set_num_threads(1)  # for tokens of a small transformer several are slower
    tokens = tokens_for(settings.host, "exchange the policy")
    application = EngineServer(settings, tokens)
    listener = listen("the engine", settings.host, settings.port, port_file)
    run_application(application, listener, application.intake)
