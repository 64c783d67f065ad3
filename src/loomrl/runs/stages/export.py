"""policy, safety case -> policy.onnx, manifest, parity proof. Refuses a blocked case."""

from loomrl.export.export import export_policy
from loomrl.runs.config import PolicyConfig
from loomrl.runs.stages import Folders

INPUTS = ("environment", "training", "evaluation", "safety")


def run(config: PolicyConfig, folders: Folders) -> None:
    """Export the policy and prove that the graph acts like the network."""
    export_policy(
        config, folders["environment"], folders["training"], folders["evaluation"], folders["safety"], folders["export"]
    )
