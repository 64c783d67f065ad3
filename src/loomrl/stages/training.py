"""snapshot, config -> policy weights, learning curves."""

from loomrl.config import PolicyConfig
from loomrl.stages import Folders
from loomrl.training.train import train_policy

INPUTS = ("environment",)


def run(config: PolicyConfig, folders: Folders) -> None:
    """Train, resuming from the newest intact checkpoint of the same inputs."""
    train_policy(config.training, folders["environment"], folders["training"])
