"""Trained in another version of the environment than the one it is examined in."""

from loomrl.system.files import write_sums
from loomrl.types import TrainingReport


def tamper(folders):
    path = folders.training / "training.json"
    TrainingReport.read(path).model_copy(update={"snapshot_digest": "0" * 64}).write(path)
    write_sums(folders.training)
