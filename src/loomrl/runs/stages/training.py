"""snapshot, config -> policy weights, learning curves."""

from loomrl.runs.config import PolicyConfig
from loomrl.runs.stages import Folders
from loomrl.training.train import train_policy

INPUTS = ("environment",)


def run(config: PolicyConfig, folders: Folders) -> None:
    """Train, resuming from the newest intact checkpoint of the same inputs."""
    train_policy(config.training, folders["environment"], folders["training"])
