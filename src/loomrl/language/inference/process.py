"""A served engine in a process of its own."""

from loomrl.system.http.process import ServiceProcess


class EngineProcess(ServiceProcess):
    """`with EngineProcess(policy=folder) as engine: engine.url`. Options are those of `loomrl engine serve`."""

    arguments = ("loomrl.language.inference", "serve")
    name = "engine"
