"""A served engine in a process of its own."""

from loomrl.language.trajectory.process import ServiceProcess


class EngineProcess(ServiceProcess):
    """`with EngineProcess(policy=folder) as engine: engine.url`. Options are those of `loomrl engine serve`."""

    module = "loomrl.language.inference"
    name = "engine"
