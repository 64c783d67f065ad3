"""Ray Train's trainer, without what would hold up its end. Imported where there is a cluster: Ray is heavy."""

from typing import Any

from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback


class Trainer(TorchTrainer):  # type: ignore[misc]
    """Ray Train's trainer for torch, but that it ends as soon as its learners have.

    Ray 2.60 has an actor beside each training that frees its resources should the training's controller die alone. When
    that actor is to end it waits for itself, and everybody waits for it, 12 s every time. Here there is no such actor:
    the controller lives as long as the process that began it, with which Ray frees the same resources.
    """

    def _create_default_callbacks(self) -> list[Any]:
        callbacks: list[Any] = super()._create_default_callbacks()
        return [one for one in callbacks if not isinstance(one, PlacementGroupCleanerCallback)]
