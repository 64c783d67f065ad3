"""policy, snapshot -> episode data, evaluation report. Refuses when the data gate finds invalid data."""

from loomrl.evaluation.evaluate import evaluate_policy
from loomrl.runs.config import PolicyConfig
from loomrl.runs.stages import Folders

INPUTS = ("environment", "training")


def run(config: PolicyConfig, folders: Folders) -> None:
    """Evaluate on the held-out seeds."""
    evaluate_policy(config.evaluation, folders["environment"], folders["training"], folders["evaluation"])
