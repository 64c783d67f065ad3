"""What every host of a cluster needs: the very software of the process that began the training.

Ray compares its own version and Python's. LoomRL's code, and what it computes with, are compared here, before anything
that one of them made is read by the other.
"""

import pickle
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loomrl.errors import ConfigError
from loomrl.training.inputs import software
from loomrl.types import Json

if TYPE_CHECKING:
    from loomrl.training.distributed.learners.learner import LearnerTask

_SHOWN = 3  # differences that are named


def same_software(learn: Callable[[Json], None], task: "LearnerTask") -> tuple[Callable[[Json], None], Json]:
    """The function, and its argument, that Ray Train is to call in every learner's process. It compares the host's
    software with this process's, and calls `learn({"task": task})` where they are equal. Otherwise it reports a
    ConfigError to the coordinator and raises it.

    Raises:
        ConfigError: when an algorithm's entry point cannot be loaded here, or a package of the back-end is not
            installed.
    """
    import ray.cloudpickle

    algorithm, backend = task.job.config.algorithm, task.job.backend
    return _begin, {
        "software": software(algorithm, backend),
        "of": (algorithm, backend),
        "coordinator": task.coordinator,
        "work": ray.cloudpickle.dumps((learn, {"task": task})),
    }


def _begin(order: Json) -> None:
    """Start learning in a learner's process, after its software was compared.

    Raises:
        ConfigError: when this host's software is another; the coordinator knows it too.
    """
    import ray

    if ray.get(order["coordinator"].failure.remote()) is not None:  # the process that began the training raises it
        return
    try:
        require_software(order["software"], *order["of"])
    except ConfigError as error:
        ray.get(order["coordinator"].report_failure.remote(error))
        raise
    # Of the process that began the training, by way of Ray, which would unpickle it just so, but before the comparison.
    learn, config = pickle.loads(order["work"])
    learn(config)


def require_software(wanted: Json, algorithm: str, backend: str) -> None:
    """Check that this host has the software of the one where the training was begun: what an algorithm with an
    environment's back-end computes with. `wanted` is what `loomrl.training.inputs.software` gave there.

    Raises:
        ConfigError: naming the host and the differences.
    """
    if differences := different(wanted, software(algorithm, backend)):
        raise ConfigError(
            f"training.distributed: host {socket.gethostname()} has other software than the one this was begun on: "
            f"{_listed(differences)}; install the same versions of LoomRL and of its dependencies on all hosts"
        )


def different(here: Any, there: Any, name: str = "") -> list[str]:
    """The differences between two nested dictionaries, each as text: `NAME VALUE there, VALUE here`, of digests of code
    the name only. Empty where they are equal."""
    if not (isinstance(here, dict) and isinstance(there, dict)):
        shown = "" if name.startswith(("code", "plugin packages")) else f" {there} there, {here} here"
        return [] if here == there else [f"{name}{shown}"]
    names = sorted(here.keys() | there.keys())
    return [one for key in names for one in different(here.get(key), there.get(key), f"{name} {key}".strip())]


def _listed(differences: list[str]) -> str:
    rest = len(differences) - _SHOWN
    return "; ".join(differences[:_SHOWN]) + (f"; and {rest} more" if rest > 0 else "")
