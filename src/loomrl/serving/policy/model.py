"""A policy as the server sees it: a verified ONNX graph and its manifest. Needs numpy and onnxruntime, not torch."""

import importlib.metadata
import platform
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.finite.shield import NoState, Shield
from loomrl.errors import ArtifactError
from loomrl.serving.config import ExplorationConfig
from loomrl.serving.policy.shield import CERTIFIED, Certified, NotAllowed, RuntimeShield, float_limits
from loomrl.system.files import sha256, sha256_file
from loomrl.types import FloatArray, PolicyManifest

GRAPH, MANIFEST, SHIELD = "policy.onnx", "manifest.json", "shield.safetensors"
STATE_IN, STATE_OUT = "state_in", "state_out"  # a recurrent policy's memory; zeros where an episode begins
TEXT = "text"  # actions are texts, each byte chosen after the ones before it
CHOICES = ("discrete", "multi_discrete", "multi_binary", TEXT)
SMALL = 64  # numbers up to which Python's own loops are faster than NumPy's
_PROBE_TOLERANCE = 1e-5  # continuous actions on another processor family; discrete ones must be equal


class NotFinite(ValueError):
    """The policy answered an observation with a number that is not finite."""


NoAnswer = (NotFinite, NoState, NotAllowed)  # nothing can be decided for an observation; another policy might


@dataclass(frozen=True)
class PolicyOutput:
    """What a policy answers to a batch of B observations."""

    action: NDArray[Any]  # (B, *action), greedy
    value: FloatArray  # (B,)
    outputs: dict[str, NDArray[Any]]  # every output of the graph by name
    instead: NDArray[np.int64] | None = None  # (B, A): what the shield takes where each action was chosen
    chosen: NDArray[Any] | None = None  # (B,): what the policy chose, where a shield had its say


class ServedPolicy:
    """Acts deterministically on raw observations; one thread, so results do not depend on the batch size."""

    folder: Path  # that `load` read
    is_loaded = True

    def __init__(
        self,
        graph: bytes,
        manifest: PolicyManifest,
        version: str,
        shield: Shield | None = None,
        certified: Certified | None = None,
    ) -> None:
        self.graph, self.shield = graph, shield
        self._session = open_session(graph, manifest.name)
        self.output_names = [output.name for output in self._session.get_outputs()]
        self._describe(manifest, version, certified)

    def _describe(self, manifest: PolicyManifest, version: str, certified: Certified | None) -> None:
        """What the manifest alone says."""
        self.manifest, self.version = manifest, version
        self.shown_outputs = [name for name in self.output_names if name != STATE_OUT]  # to those who ask
        state = manifest.inputs.get(STATE_IN)
        self.memory_size = 0 if state is None else int(state["shape"][1])
        ((self.input_name, described),) = ((name, each) for name, each in manifest.inputs.items() if name != STATE_IN)
        self.dtype = np.dtype(described["dtype"])
        self.shape = tuple(int(size) for size in described["shape"][1:])
        self.kind = manifest.action_kind
        self.chooses = self.kind in CHOICES  # actions are chosen from logits: whole numbers, equal or not
        self.bounds = None if self.chooses else _action_bounds(manifest)
        self.guard = RuntimeShield.of(manifest, (self.shape, self.dtype), self.bounds, certified)
        self.exploration = ExplorationConfig()

    @classmethod
    def load(cls, folder: Path, version: str = "0") -> "ServedPolicy":
        """Load a folder that `loomrl.export` wrote.

        The bytes whose digest is checked are the bytes that run. The probe is answered before anyone relies on it.

        Raises:
            ArtifactError: when a file cannot be read, or a digest, the graph's outputs or the answer to the probe are
                not the manifest's.
        """
        manifest = PolicyManifest.read(folder / MANIFEST)
        path = folder / GRAPH
        try:
            graph = path.read_bytes()
        except OSError as error:
            raise ArtifactError(f"cannot read {path}: {error.strerror}; export the policy again") from error
        if sha256(graph) != manifest.onnx_sha256:
            raise ArtifactError(
                f"{path} is not the graph its manifest names (SHA-256 differs); restore or export again"
            )
        sums = manifest.certified
        certified = None if sums is None else Certified.load(folder / CERTIFIED, sums["sha256"])
        policy = cls(graph, manifest, version, _load_shield(folder, manifest), certified)
        policy._check_outputs(path)
        policy._answer_probe(path)
        policy.folder = folder
        return policy

    def __call__(self, obs: NDArray[Any]) -> NDArray[Any]:
        """Greedy actions (B, *action) for raw observations (B, *obs)."""
        return self.answer(np.asarray(obs, dtype=self.dtype)).action

    def answer(self, obs: NDArray[Any], memory: FloatArray | None = None) -> PolicyOutput:
        """Everything the graph says about observations (B, *obs) of its dtype, and what the look-up shield takes.

        `memory` (B, M) is a recurrent policy's, by default that of an episode's start.

        Raises:
            NotFinite: when an output is not finite.
            NoState: when the shield's model has no such state.
        """
        outputs = self.outputs(obs, memory)
        for name, output in outputs.items():
            if output.dtype.kind == "f" and not _all_finite(output):
                raise NotFinite(f"the policy's output {name!r} is not finite")
        action, value = outputs["action"], outputs["value"].reshape(len(obs))
        if self.shield is None:
            return PolicyOutput(action, value, outputs)
        instead = self.shield.rows(obs)
        return PolicyOutput(instead[np.arange(len(obs)), action].astype(action.dtype), value, outputs, instead, action)

    def outputs(self, obs: NDArray[Any], memory: FloatArray | None = None) -> dict[str, NDArray[Any]]:
        """Every output of the graph for observations (B, *obs) of its dtype, finite or not.

        `memory` (B, M) is a recurrent policy's, by default that of an episode's start.
        """
        feeds = {self.input_name: obs}
        if self.memory_size:
            feeds[STATE_IN] = np.zeros((len(obs), self.memory_size), np.float32) if memory is None else memory
        return dict(zip(self.output_names, self._session.run(None, feeds), strict=True))

    def _check_outputs(self, path: Path) -> None:
        expected = {"action", "value"} | ({"logits"} if self.chooses else {"mean", "log_std"})
        expected |= {STATE_OUT} if self.memory_size else set()
        missing = expected - set(self.output_names)
        if missing or set(self.output_names) != set(self.manifest.outputs):
            raise ArtifactError(
                f"{path}: outputs are {sorted(self.output_names)}, the manifest names {sorted(self.manifest.outputs)}"
                f" and a {self.manifest.action_kind} policy needs {sorted(expected)}; export it again"
            )

    def _answer_probe(self, path: Path) -> None:
        observations = np.asarray(self.manifest.probe_observations, dtype=self.dtype)  # (N, *obs)
        if not len(observations) or observations.shape[1:] != self.shape:
            raise ArtifactError(f"{path.parent / MANIFEST}: probe_observations do not fit the input; export it again")
        expected = np.asarray(self.manifest.probe_actions)
        try:
            answer = self.answer(observations)
        except NoAnswer as error:
            raise ArtifactError(f"{path}: {error} for a probe observation; export it again") from error
        actions = answer.action if answer.chosen is None else answer.chosen
        if not _equal(actions, expected, self.chooses):
            raise ArtifactError(
                f"{path}: the probe's actions are not the manifest's; the graph does not act as exported"
            )


class UnloadedPolicy(ServedPolicy):
    """A version whose files cannot be loaded, or are not yet: what it observes and which actions there are is known
    from its manifest. A person's action is checked against it; it is asked for none itself."""

    is_loaded = False

    def __init__(self, manifest: PolicyManifest, version: str) -> None:
        self.output_names = list(manifest.outputs)
        self._describe(manifest, version, None)
        self.memory_size = 0  # nothing is remembered of what it does not decide

    def outputs(self, obs: NDArray[Any], memory: FloatArray | None = None) -> dict[str, NDArray[Any]]:  # noqa: ARG002 - a policy's signature
        """Never returns, as there is no graph to run.

        Raises:
            NotFinite: always.
        """
        raise NotFinite(f"version {self.version} is not loaded: it answers nothing")


def _all_finite(values: NDArray[Any]) -> bool:
    if values.size <= SMALL and isfinite(sum(values.ravel().tolist())):
        return True
    return bool(np.isfinite(values).all())


def _load_shield(folder: Path, manifest: PolicyManifest) -> Shield | None:
    if manifest.shield_sha256 is None:
        if manifest.environment.shield is not None:
            raise ArtifactError(
                f"{folder / MANIFEST} names no shield, and its policy was trained behind one; export again"
            )
        return None
    path = folder / SHIELD
    if not path.is_file() or sha256_file(path) != manifest.shield_sha256:
        raise ArtifactError(f"{path} is not the shield its manifest names; restore or export again")
    return Shield.load(path)


def runtime() -> dict[str, str]:
    """What computes decisions besides the graph: the versions of numpy and onnxruntime, and the `machine`. Under
    others, last digits may differ.
    """
    names = ("numpy", "onnxruntime")
    return {name: importlib.metadata.version(name) for name in names} | {"machine": platform.machine()}


def open_session(graph: bytes, name: str) -> Any:
    """An onnxruntime session with one thread; raises `ArtifactError` when the graph cannot be loaded."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises classes of its own, one per status code, without a common base
        raise ArtifactError(f"policy {name!r}: onnxruntime cannot load the graph: {error}; export it again") from error


def _equal(actions: NDArray[Any], expected: NDArray[Any], exactly: bool) -> bool:
    if actions.shape != expected.shape:
        return False
    if exactly:
        return bool(np.array_equal(actions, expected))
    return bool(np.allclose(actions, expected, rtol=_PROBE_TOLERANCE, atol=_PROBE_TOLERANCE))


def _action_bounds(manifest: PolicyManifest) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Those of a continuous action (*action), numbers of the graph's dtype."""
    space = manifest.environment.action
    if "low" not in space or "high" not in space:
        return None
    shape = tuple(space.get("shape", np.shape(space["low"])))
    low, high = (np.broadcast_to(np.asarray(space[key], np.float64), shape) for key in ("low", "high"))
    return float_limits(low, high, manifest.outputs["action"]["dtype"])
