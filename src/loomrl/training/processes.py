"""Which processes a policy was computed by: said by each of them about itself, whoever began the training."""

import sys
from collections.abc import Iterable

from loomrl.algorithms.base import Algorithm
from loomrl.system.files import canonical_json, sha256
from loomrl.system.threads import NUM_THREADS, processor_family
from loomrl.training.inputs import software
from loomrl.types import ComputingProcess, Json


def describe_process(name: str, algorithm: Algorithm, algorithm_name: str, backend: str) -> Json:
    """A description of this process, `name`, which computes with `algorithm` in environments of a back-end: a
    `ComputingProcess`, as JSON values.

    Raises:
        ConfigError: when the algorithm's entry point cannot be loaded, or a package of the back-end is not installed.
    """
    engine = algorithm.engine
    torch = None if engine == "compiled" else sys.modules.get("torch")  # that engine's threads change no number
    return ComputingProcess(
        name=name,
        engine=engine,
        device=algorithm.device,
        num_threads=torch.get_num_threads() if torch is not None else NUM_THREADS,
        processor=processor_family(),
        software=sha256(canonical_json(software(algorithm_name, backend))),
    ).to_json()


def union(*groups: Iterable[Json]) -> list[Json]:
    """The distinct entries of several lists, in the order in which they first occur."""
    found: list[Json] = []
    for process in (one for group in groups for one in group):
        if process not in found:
            found.append(process)
    return found


def common(processes: Iterable[ComputingProcess], fact: str) -> str:
    """The field `fact` of all processes as text. Where they differ it names each value with the first process that has
    it: `A (learner 0), B (learner 1)`. Without processes an empty text."""
    first: dict[str, str] = {}
    for process in processes:
        first.setdefault(str(getattr(process, fact)), process.name)
    return next(iter(first)) if len(first) == 1 else ", ".join(f"{value} ({name})" for value, name in first.items())
