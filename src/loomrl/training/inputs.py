"""What a trained policy depends on, as one digest: other inputs never resume from its checkpoints."""

import platform
from collections.abc import Iterable
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from typing import Any

from loomrl.algorithms.registry import find_entry_point
from loomrl.environment.sources.dependencies import with_requirements
from loomrl.environment.sources.plugins import PluginCode, code_of
from loomrl.environment.sources.stage_code import stage_code
from loomrl.errors import ConfigError
from loomrl.system.files import canonical_json, sha256
from loomrl.system.threads import processor_family
from loomrl.training.config import WHERE_IT_RUNS, TrainingConfig
from loomrl.types import EnvironmentSnapshot, Json

_PACKAGES = ("torch", "numba", "llvmlite", "numpy", "gymnasium")
_CHANGES_NOTHING: Any = {"checkpoint_interval_seconds": True, "distributed": set(WHERE_IT_RUNS)}


def inputs_digest(
    config: TrainingConfig, snapshot: EnvironmentSnapshot, backend: str = "auto", device: str = "cpu"
) -> str:
    """SHA-256, 64 hex digits, over everything the trained policy depends on; `backend` steps its environments, on
    `device`.

    Raises:
        ConfigError: when an algorithm's entry point cannot be loaded, or a package of the back-end is not installed.
    """
    return sha256(
        canonical_json(
            {
                "training": config.model_dump(mode="json", exclude=_CHANGES_NOTHING),
                "snapshot": snapshot.digest,
                "backend": backend,
                "device": device,
                **software(config.algorithm, backend),
                "processor": processor_family(),
            }
        )
    )


def software(algorithm: str, backend: str = "auto") -> Json:
    """What learns with an algorithm: digests of the `code` and of a third party's `plugin` (None for LoomRL's own), the
    `versions` of the packages it computes with, and Python's.

    Raises:
        ConfigError: when an algorithm's entry point cannot be loaded, or a package of the back-end is not installed.
    """
    point = find_entry_point(algorithm)
    plugin = code_of([point] if point else [])
    # The simulators' are in the snapshot.
    packages = {*_PACKAGES, *(["envpool"] if backend == "envpool" else []), *_requirements(plugin)}
    return {
        "code": stage_code("training", algorithm),
        "plugin": _plugin(point, plugin) if point else None,  # LoomRL's own algorithms are in the code above
        "versions": {name: _version(name) for name in sorted(packages)},
        "python": platform.python_version(),
    }


def _requirements(plugin: PluginCode) -> Iterable[str]:
    """What a plug-in imports of LoomRL's own requirements, and what that requires; of what every algorithm computes
    with, the version alone counts for others too."""
    return with_requirements(plugin.requirements.difference(_PACKAGES))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError as error:
        raise ConfigError(
            f"environment.backend {package!r}: it is not installed; pip install 'loomrl[{package}]'"
        ) from error


def _plugin(point: EntryPoint, code: PluginCode) -> Json:
    """The distribution of an algorithm of others, and the packages it consists of, those it imports included."""
    return {
        "distribution": [point.dist.name, point.dist.version] if point.dist else None,
        "packages": {package.name: package.digest for package in code.packages()},
    }
