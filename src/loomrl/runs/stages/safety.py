"""policy, snapshot, evaluation -> safety case. Ends well also when claims are refuted."""

from loomrl.runs.config import PolicyConfig
from loomrl.runs.stages import Folders
from loomrl.safety.gate import build_case

INPUTS = ("environment", "training", "evaluation")


def run(config: PolicyConfig, folders: Folders) -> None:
    """Examine every claim and write the case."""
    build_case(config.safety, folders["environment"], folders["training"], folders["evaluation"], folders["safety"])
