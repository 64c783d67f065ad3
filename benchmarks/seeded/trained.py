"""Policies that are trained, evaluated and examined by a config as it stands, and what was done to them afterwards.

The files of `unseen` name whose policy they spoil (`POLICY`) and how (`spoil`). Their author saw neither checks nor
configs, and the author of the checks had no part in them. The configs are those that ship, and two that a new user
wrote from the README and docs alone, for environments that had no config.
"""

import importlib
import os
import pkgutil
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.evaluation.evaluate import evaluate_policy
from loomrl.runs.config import PolicyConfig, load_config
from loomrl.system.files import write_sums
from loomrl.training.train import train_policy
from seeded.workshop import Folders, Outcome, Workshop

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
KIND = "unseen"
_FOLDERS = (HERE / "configs", PROJECT / "configs")


def unseen() -> list[ModuleType]:
    """All files of `unseen`."""
    return [
        importlib.import_module(f"{__package__}.{KIND}.{found.name}") for found in pkgutil.iter_modules([HERE / KIND])
    ]


def path_of(policy: str) -> Path:
    """The config of a policy.

    Raises:
        FileNotFoundError: no config has that name.
    """
    for folder in _FOLDERS:
        if (path := folder / f"{policy}.yaml").exists():
            return path
    raise FileNotFoundError(f"no {policy}.yaml in {' or '.join(map(str, _FOLDERS))}")


def examine(policy: str, spoiled_by: ModuleType | None, root: Path, trained: Path, seed: int | None = None) -> Outcome:
    """The gate's outcome for the policy that a config trains, as it is or spoilt by a file; with another seed where one
    is given.

    `trained` is a folder in which policies are kept that were trained before, `root` one that is empty.
    """
    config = load_config(path_of(policy))
    if seed is not None:
        training = config.training.model_copy(update={"seed": seed})
        config = config.model_copy(update={"name": f"{policy}-{seed}", "training": training})
    described: dict[str, Any] = {"SAFETY": config.safety.model_dump(mode="json")}
    if spoiled_by is not None:
        described["spoil"] = spoiled_by.spoil
    name = policy if spoiled_by is None else spoiled_by.__name__
    return _AsConfigured(root, config, trained).examine(SimpleNamespace(__name__=name, **described))  # type: ignore[arg-type]


def trained_once(config: PolicyConfig, kept: Path) -> Path:
    """The folder, below `kept`, with the environment and the training of what a config trains."""
    return kept_once(kept / config.name, lambda folder: _train(config, folder))


def kept_once(path: Path, make: Callable[[Path], None]) -> Path:
    """The file or folder, made if it is not there; processes that make it at once get a whole one."""
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as temporary:
            make(Path(temporary) / "new")
            try:
                os.rename(Path(temporary) / "new", path)
            except OSError:
                if not path.exists():
                    raise
    return path


def _train(config: PolicyConfig, folder: Path) -> None:
    folder.mkdir()
    environment, training = folder / "environment", folder / "training"
    take_snapshot(config.environment, PROJECT, environment)
    write_sums(environment)
    train_policy(config.training, environment, training, home=folder / "home")
    write_sums(training)


class _AsConfigured(Workshop):
    """Trains and evaluates as a config says, in place of CartPole's good policy."""

    def __init__(self, root: Path, config: PolicyConfig, trained: Path) -> None:
        super().__init__(root)
        self.config, self.trained = config, trained

    def _copy_of_good(self, folder: Path) -> Folders:
        kept = trained_once(self.config, self.trained)
        for stage in ("environment", "training"):
            shutil.copytree(kept / stage, folder / stage)
        return Folders(folder / "environment", folder / "training", folder / "evaluation")

    def _evaluated(self, folders: Folders) -> None:
        evaluation = self.config.evaluation.model_copy(update={"render": False})
        evaluate_policy(evaluation, folders.environment, folders.training, folders.evaluation)
        write_sums(folders.evaluation)
