"""A trained network as the server sees it, without a file."""

from loomrl.algorithms.policies.onnx_graph import build_graph, tensors
from loomrl.algorithms.policies.policy import TrainedPolicy
from loomrl.environment.spaces import space_to_json
from loomrl.serving.policy.model import ServedPolicy, open_session
from loomrl.system.files import sha256
from loomrl.types import EnvironmentSpec, PolicyManifest


def served(policy: TrainedPolicy) -> ServedPolicy:
    graph = build_graph(policy, 17)
    inputs, outputs = tensors(open_session(graph, "p"))
    spec = EnvironmentSpec(
        name="e",
        version="1",
        entry_point="a:B",
        observation=space_to_json(policy.observation_space),
        action=space_to_json(policy.action_space),
    )
    manifest = PolicyManifest(
        name="p",
        onnx_sha256=sha256(graph),
        policy_digest="",
        snapshot_digest="",
        case_sha256="",
        environment=spec,
        algorithm="ppo",
        action_kind=policy.action_kind,
        inputs=inputs,
        outputs=outputs,
        probe_observations=[],
        probe_actions=[],
        opset=17,
    )
    return ServedPolicy(graph, manifest, "1")
