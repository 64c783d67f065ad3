"""policy, snapshot, evaluation -> safety case. Ends well also when claims are refuted."""

from loomrl.config import PolicyConfig
from loomrl.safety.gate import build_case
from loomrl.stages import Folders

INPUTS = ("environment", "training", "evaluation")


def run(config: PolicyConfig, folders: Folders) -> None:
    """Examine every claim and write the case."""
    build_case(config.safety, folders["environment"], folders["training"], folders["evaluation"], folders["safety"])
