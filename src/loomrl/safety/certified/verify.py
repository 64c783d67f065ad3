"""Does a network break a property? The search decides nearly everything; what it leaves open goes to Marabou."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from loomrl.errors import ArtifactError
from loomrl.safety.certified import marabou
from loomrl.safety.certified.graph import read_network
from loomrl.safety.certified.network import Network
from loomrl.safety.certified.packed import pack
from loomrl.safety.certified.search import PropertySearch, SolverVerdict
from loomrl.safety.certified.vnnlib import Case, Property, read_property
from loomrl.system.processors import num_processors

_OWN_SHARE = 0.6  # of the time, before what is open is handed over
_ASKED, _CASES = 8, 4  # inputs of each of the first cases on which reader and runtime must agree ...
DIFFERENCE = 1e-4  # ... up to this, relative and absolute
_LINEAR = {"relu", "leaky_relu"}  # what Marabou decides completely


@dataclass(frozen=True)
class VerificationResult:
    """The verdict, and the seconds and boxes that it took. `decided_by` is `search`, or `marabou`.

    `inputs` and `outputs` are a counterexample's, as onnxruntime computed it in float32; None where there is none.
    """

    verdict: SolverVerdict
    seconds: float
    num_boxes: int
    decided_by: str
    inputs: NDArray[np.float32] | None = None
    outputs: NDArray[np.float32] | None = None


class CandidateRunner:
    """Runs candidates in onnxruntime, as the policy is served.

    A call with one input, (num_inputs,), gives the graph's `output`, by default its first one, (num_outputs,) in
    float32.
    """

    def __init__(self, graph: Path, output: str | None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0]
        self._shape = [size if isinstance(size, int) and size > 0 else 1 for size in self._input.shape]
        self._type = np.float64 if self._input.type == "tensor(double)" else np.float32
        self._output = output or self._session.get_outputs()[0].name

    def __call__(self, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
        """The outputs for one input, (num_inputs,) -> (num_outputs,)."""
        feed = {self._input.name: inputs.reshape(self._shape).astype(self._type)}
        (outputs,) = self._session.run([self._output], feed)
        return np.asarray(outputs, np.float32).reshape(-1)

    def confirm(self, inputs: NDArray[np.float64], case: Case) -> NDArray[np.float32] | None:
        """The input in float32, if its outputs satisfy all limits of the case; else None. The ends of the case's box
        are rounded to float32."""
        low, high = (end.astype(np.float32) for end in (case.low, case.high))
        rounded = np.clip(inputs.astype(np.float32), low, high)
        satisfied = case.rows @ self(rounded).astype(np.float64) <= case.limits
        return rounded if satisfied.all() else None


def demand_agreement(
    network: Network, replay: CandidateRunner, low: NDArray[np.float64], high: NDArray[np.float64], source: object
) -> None:
    """Demand that what is verified is what runs: network and runtime are asked about the same inputs, and must agree.

    The inputs are corners of a box, `low` and `high` (d,), and random inputs in it. Differences are those of float32,
    some 5e8 times what float64 rounds: where they are small, its rounding lies far below `search.SLACK`. `source` names
    the graph in the message.

    Raises:
        ArtifactError: where they differ.
    """
    rng = np.random.default_rng(0)
    shares = np.concatenate([rng.integers(0, 2, (_ASKED // 2, len(low))), rng.random((_ASKED // 2, len(low)))])
    inputs = (low + shares * (high - low)).astype(np.float32)
    expected = network(inputs.astype(np.float64))
    for one, wanted in zip(inputs, expected, strict=True):
        found = replay(one).astype(np.float64)
        if found.shape != wanted.shape or not np.all(np.abs(found - wanted) <= DIFFERENCE * (1.0 + np.abs(wanted))):
            raise ArtifactError(
                f"{source}: for {one.tolist()} onnxruntime says {found.tolist()}, real arithmetic {wanted.tolist()}: "
                "its numbers are too large for float32, or an operator means something else here; it is not verified"
            )


def verify(graph: Path, prop: Path, timeout: float, output: str | None = None) -> VerificationResult:
    """Whether some input of the property's region breaks it: `sat` with that input, `unsat`, or undecided.

    `unsat` says that bounds in real arithmetic, computed in float64, exclude it by at least `search.SLACK`; it is no
    proof about the rounding of the float32 runtime. `timeout` is in seconds, for everything from reading on.

    Raises:
        ArtifactError: when graph or property cannot be read, hold what is not supported, or do not fit each other.
    """
    begun = time.monotonic()
    network, question = read_network(graph, output), read_property(prop)
    _demand_fit(network, question, graph)
    replay = CandidateRunner(graph, output)
    for case in question.cases[:_CASES]:
        demand_agreement(network, replay, case.low, case.high, graph)
    complete = find_spec("maraboupy") is not None and {layer.kind for layer in network.layers} <= _LINEAR
    search = PropertySearch(pack(network), question.cases, replay.confirm, num_processors())
    found = search.run(begun + timeout * (_OWN_SHARE if complete else 1.0))
    verdict, inputs, decided_by = found.verdict, found.inputs, "search"
    if complete and verdict in (SolverVerdict.TIMEOUT, SolverVerdict.UNKNOWN):
        verdict, inputs = _ask_marabou(graph, prop, output, begun + timeout, question, replay)
        decided_by = "marabou"
    outputs = None if inputs is None else replay(inputs)
    return VerificationResult(verdict, time.monotonic() - begun, found.num_boxes, decided_by, inputs, outputs)


def _demand_fit(network: Network, question: Property, graph: Path) -> None:
    for what, has, asked in (
        ("inputs X", network.num_inputs, question.num_inputs),
        ("outputs Y", network.num_outputs, question.num_outputs),
    ):
        if has != asked:
            raise ArtifactError(f"{question.source} declares {asked} {what}, but {graph} has {has}")


def _ask_marabou(
    graph: Path, prop: Path, output: str | None, deadline: float, question: Property, replay: CandidateRunner
) -> tuple[SolverVerdict, NDArray[np.float32] | None]:
    """In a process of its own, which ends with the time: it holds no promise to end by itself."""
    left = deadline - time.monotonic()
    if left < 1.0:
        return SolverVerdict.TIMEOUT, None
    command = [sys.executable, "-m", marabou.__name__, str(graph), str(prop), str(int(left)), output or ""]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        try:
            answered, complaint = process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return SolverVerdict.TIMEOUT, None
    if process.returncode != 0:
        raise ArtifactError(f"Marabou failed on {graph}: {complaint.decode(errors='replace')[-1000:]}")
    answer = json.loads(answered.splitlines()[-1])
    verdict = SolverVerdict(answer["verdict"])
    if verdict is not SolverVerdict.SAT:
        return verdict, None
    inputs = replay.confirm(np.array(answer["inputs"]), question.cases[answer["case"]])
    return (SolverVerdict.UNKNOWN, None) if inputs is None else (SolverVerdict.SAT, inputs)
