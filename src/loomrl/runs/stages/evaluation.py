"""policy, snapshot -> episode data, evaluation report. Refuses when the data gate finds invalid data."""

from loomrl.evaluation.evaluate import evaluate_policy
from loomrl.runs.config import PolicyConfig
from loomrl.runs.stages import Folders

INPUTS = ("environment", "training")


def run(config: PolicyConfig, folders: Folders) -> None:
    """Evaluate the trained policy on the held-out seeds, and write the report into the stage's folder.

    Raises:
        GateRefused: when the data gate finds invalid data; everything has been written by then.
        ArtifactError: when the snapshot or the policy cannot be read.
        EnvironmentFault: when the environment breaks its API.
    """
    evaluate_policy(config.evaluation, folders["environment"], folders["training"], folders["evaluation"])
