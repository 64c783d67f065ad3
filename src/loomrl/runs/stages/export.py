"""policy, safety case -> policy.onnx, manifest, parity proof. Refuses a blocked case."""

from loomrl.export.export import export_policy
from loomrl.runs.config import PolicyConfig
from loomrl.runs.stages import Folders

INPUTS = ("environment", "training", "evaluation", "safety")


def run(config: PolicyConfig, folders: Folders) -> None:
    """Export the policy to ONNX into the stage's folder, and prove there that the graph acts like the network.

    Raises:
        GateRefused: when the safety case blocks, or the graph does not act as it should; there is no `policy.onnx`
            then. ArtifactError: when an input cannot be read.
    """
    export_policy(
        config, folders["environment"], folders["training"], folders["evaluation"], folders["safety"], folders["export"]
    )
