"""The process group of learners on several hosts: Gloo must be told which of a host's interfaces reach the others.

Policies are learnt on processors, whose collectives are Gloo's; a learner's GPU steps its environments.
"""

import os
import socket
from dataclasses import dataclass
from typing import Any

import ray.util
from ray.train.torch import TorchConfig

_VARIABLE = "GLOO_SOCKET_IFNAME"  # Gloo's own; without it, the interface of the host's name, often the loopback one
_Backend: Any = TorchConfig().backend_cls


class _Interfaces(_Backend):  # type: ignore[misc]
    """Ray Train's, after every learner's process has chosen its interface."""

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        worker_group.execute(choose_interface)
        super().on_start(worker_group, backend_config)


@dataclass
class GroupConfig(TorchConfig):  # type: ignore[misc]
    """The config of a Gloo process group for Ray Train: it uses the network interfaces of Ray's own traffic."""

    backend: str | None = "gloo"

    @property
    def backend_cls(self) -> Any:
        """The class by which Ray Train starts the group: its own, after each learner's process has chosen its
        interface."""
        return _Interfaces


def choose_interface() -> None:
    """Have Gloo use the network interface that has the address under which the cluster knows this host, by setting
    GLOO_SOCKET_IFNAME; what is set there already stays. Where no interface has the address, as where a container's is
    translated, Gloo chooses itself."""
    if (name := interface_with(ray.util.get_node_ip_address())) is not None:
        os.environ.setdefault(_VARIABLE, name)


def interface_with(address: str) -> str | None:
    """The name of the network interface with an IP address; None where no interface has it."""
    import psutil

    families = (socket.AF_INET, socket.AF_INET6)
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.family in families and one.address.partition("%")[0] == address for one in addresses):
            return str(name)
    return None
