"""A second opinion: the complete verifier Marabou (Wu et al., arXiv 2401.14461), on networks of ReLUs.

    python -m loomrl.safety.certified.marabou GRAPH PROPERTY SECONDS [OUTPUT]

Prints one line of JSON: the verdict, and for `sat` the inputs and the number of the case they are about.
"""

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from loomrl.safety.certified.graph import read_network
from loomrl.safety.certified.network import Affine, Network
from loomrl.safety.certified.vnnlib import Case, read_property

_VERDICTS = {"sat": "sat", "unsat": "unsat", "TIMEOUT": "timeout"}


def ask(network: Network, cases: tuple[Case, ...], seconds: float) -> dict[str, Any]:
    """Ask Marabou about each case in turn, until one is satisfiable or the time is up.

    Returns `verdict`, "sat", "unsat", "timeout" or "unknown"; for "sat" also `case`, its number, and `inputs`, a list
    of numbers. Activations must be ReLUs or leaky ReLUs. ImportError where Marabou is not installed.
    """
    core, _ = _marabou()
    deadline = time.monotonic() + seconds
    verdicts = []
    for number, case in enumerate(cases):
        left = int(deadline - time.monotonic())
        if left < 1:
            return {"verdict": "timeout"}
        query = _query(network, case)
        options = core.Options()
        options._verbosity, options._timeoutInSeconds = 0, left
        code, values, _ = query.solve(options=options, verbose=False)
        verdict = _VERDICTS.get(code, "unknown")
        if verdict == "sat":
            return {"verdict": "sat", "case": number, "inputs": [values[index] for index in range(network.num_inputs)]}
        verdicts.append(verdict)
    return {"verdict": next((verdict for verdict in verdicts if verdict != "unsat"), "unsat")}


def _marabou() -> tuple[Any, Any]:
    """Its core and its network. Its sources hold escapes that Python warns of when it compiles them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from maraboupy import MarabouCore
        from maraboupy.MarabouNetwork import MarabouNetwork
    return MarabouCore, MarabouNetwork


def _query(network: Network, case: Case) -> Any:
    """Variables are the inputs, then for each layer its arguments and its activations, then the outputs."""
    _, network_class = _marabou()
    query = network_class()
    blocks = [[query.getNewVariable() for _ in range(network.num_inputs)]]
    for variable, low, high in zip(blocks[0], case.low, case.high, strict=True):
        query.setLowerBound(variable, low)
        query.setUpperBound(variable, high)
    for layer in network.layers:
        before = _defined(query, layer.before, blocks)
        after = [query.getNewVariable() for _ in before]
        for one, other in zip(before, after, strict=True):
            if layer.kind == "relu":
                query.addRelu(one, other)
            else:
                query.addLeakyRelu(one, other, layer.slope)
        blocks.append(after)
    outputs = _defined(query, network.output, blocks)
    for row, limit in zip(case.rows, case.limits, strict=True):
        used = [(variable, weight) for variable, weight in zip(outputs, row, strict=True) if weight != 0.0]
        query.addInequality([variable for variable, _ in used], [float(weight) for _, weight in used], float(limit))
    query.inputVars, query.outputVars = [], []
    return query


def _defined(query: Any, affine: Affine, blocks: list[list[int]]) -> list[int]:
    """New variables that equal the rows of an affine function."""
    variables = [query.getNewVariable() for _ in affine.bias]
    for row, variable in enumerate(variables):
        terms = [
            (source, float(weight))
            for block, weights in affine.weights.items()
            for source, weight in zip(blocks[block], weights[row], strict=True)
            if weight != 0.0
        ]
        names, factors = [*(source for source, _ in terms), variable], [*(weight for _, weight in terms), -1.0]
        query.addEquality(names, factors, -float(affine.bias[row]))
    return variables


def main() -> None:
    """Ask Marabou about the property that the command line names, and print its verdict as one line of JSON.

    An error ends the process with its traceback.
    """
    graph, prop, seconds, output = (*sys.argv[1:], "")[:4]
    network, question = read_network(Path(graph), output or None), read_property(Path(prop))
    print(json.dumps(ask(network, question.cases, float(seconds))), flush=True)


if __name__ == "__main__":
    main()
