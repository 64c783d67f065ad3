"""policy, snapshot, evaluation -> safety case. Ends well also when claims are refuted."""

from loomrl.runs.config import PolicyConfig
from loomrl.runs.stages import Folders
from loomrl.safety.gate import build_case

INPUTS = ("environment", "training", "evaluation")


def run(config: PolicyConfig, folders: Folders) -> None:
    """Examine every claim about the trained policy and write the safety case into the stage's folder, refuted claims
    too.

    Raises:
        ConfigError: for a check, constraint or waiver that does not fit.
        ArtifactError: when an input cannot be read.
        EnvironmentFault: when the environment breaks its API.
    """
    build_case(config.safety, folders["environment"], folders["training"], folders["evaluation"], folders["safety"])
