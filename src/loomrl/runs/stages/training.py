"""snapshot, config -> policy weights, learning curves."""

from loomrl.runs.config import PolicyConfig
from loomrl.runs.stages import Folders
from loomrl.training.train import train_policy

INPUTS = ("environment",)


def run(config: PolicyConfig, folders: Folders) -> None:
    """Train the policy into the stage's folder, resuming from the newest intact checkpoint of the same inputs.

    Raises:
        ConfigError: for parameters, or spaces, the algorithm does not accept, or bounds the environment cannot have.
        EnvironmentFault: when the environment breaks its API; checkpoints stay.
        LoomRLError: when a metric is not finite; checkpoints stay.
        ArtifactError: when a folder cannot be written.
    """
    train_policy(config.training, folders["environment"], folders["training"])
