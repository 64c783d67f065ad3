"""A served engine in a process of its own."""

from loomrl.trajectory.process import ServiceProcess


class EngineProcess(ServiceProcess):
    """`with EngineProcess(policy=folder) as engine: engine.url`. Options are those of `loomrl engine serve`."""

    module = "loomrl.inference"
    name = "engine"
