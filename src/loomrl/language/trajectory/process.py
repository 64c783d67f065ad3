"""A hub in a process of its own: started on a free port, ready when the block begins, stopped after it."""

from typing import Any

from loomrl.system.http.process import ServiceProcess


class HubProcess(ServiceProcess):
    """A hub in a child process: `with HubProcess() as hub: hub.url`. Options are those of `loomrl hub serve`, with
    underscores; without a `database_url` the hub's database is removed after the block. Entering raises ServiceError
    when the hub does not become ready in time."""

    arguments = ("loomrl.language.trajectory", "serve")
    name = "hub"

    def _default_options(self) -> dict[str, Any]:
        return {"database_url": f"sqlite:///{self.folder}/hub.db"}
