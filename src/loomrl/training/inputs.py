"""What a trained policy depends on, as one digest: other inputs never resume from its checkpoints."""

import platform
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from pathlib import Path
from typing import Any

import loomrl
from loomrl.algorithms.registry import find_entry_point
from loomrl.environment.sources.plugins import code_of
from loomrl.errors import ConfigError
from loomrl.system.files import canonical_json, sha256, sha256_file
from loomrl.training.config import TrainingConfig
from loomrl.training.distributed.config import WHERE_IT_RUNS
from loomrl.training.threads import processor_family
from loomrl.types import EnvironmentSnapshot, Json

ROOMS = (
    *("algorithms", "training", "environment", "language", "system/security/encryption.py", "system/files.py"),
    *("system/machine_code.py", "system/schema.py", "types.py"),
)
_PACKAGES = ("torch", "numba", "llvmlite", "numpy", "gymnasium")
_CHANGES_NOTHING: Any = {"checkpoint_interval_seconds": True, "distributed": set(WHERE_IT_RUNS)}
_CODE = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)


def inputs_digest(
    config: TrainingConfig, snapshot: EnvironmentSnapshot, backend: str = "auto", device: str = "cpu"
) -> str:
    """SHA-256 over everything the trained policy depends on; `backend` steps its environments, on `device`."""
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
    """Digests of the code that learns with an algorithm, and the versions of what it computes with."""
    package = Path(loomrl.__file__).parent
    point = find_entry_point(algorithm)
    packages = (*_PACKAGES, *(["envpool"] if backend == "envpool" else []))  # the simulators' are in the snapshot
    return {
        "code": {name: _files(package / name) for name in ROOMS},
        "plugin": _plugin(point) if point else None,  # LoomRL's own algorithms are in the code above
        "versions": {name: _version(name) for name in packages},
        "python": platform.python_version(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError as error:
        raise ConfigError(
            f"environment.backend {package!r}: it is not installed; pip install 'loomrl[{package}]'"
        ) from error


def _plugin(point: EntryPoint) -> Json:
    """The distribution of an algorithm of others, and the packages it consists of, those it imports included."""
    return {
        "distribution": [point.dist.name, point.dist.version] if point.dist else None,
        "packages": {package.name: package.digest for package in code_of([point]).packages()},
    }


def _files(location: Path) -> dict[str, str]:
    """Relative POSIX path -> SHA-256 of the code in a folder; of one file where it is a file."""
    if location.is_file():
        return {location.name: sha256_file(location)}
    files = sorted(path for path in location.rglob("*") if path.name.endswith(_CODE) and path.is_file())
    return {path.relative_to(location).as_posix(): sha256_file(path) for path in files}
