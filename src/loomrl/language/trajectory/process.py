"""A hub in a process of its own: started on a free port, ready when the block begins, stopped after it."""

from typing import Any

from loomrl.system.http.process import ServiceProcess


class HubProcess(ServiceProcess):
    """A hub; without a `database_url` it keeps nothing beyond the block."""

    arguments = ("loomrl.language.trajectory", "serve")
    name = "hub"

    def _default_options(self) -> dict[str, Any]:
        return {"database_url": f"sqlite:///{self.folder}/hub.db"}
