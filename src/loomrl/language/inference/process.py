"""A served engine in a process of its own."""

from loomrl.system.http.process import ServiceProcess


class EngineProcess(ServiceProcess):
    """A served engine in a child process: `with EngineProcess(policy=folder) as engine: engine.url`. Options are those
    of `loomrl engine serve`, with underscores. Entering raises ServiceError when it does not become ready in time."""

    arguments = ("loomrl.language.inference", "serve")
    name = "engine"
