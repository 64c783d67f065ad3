"""Model checking of a large chain, beside Storm: `python benchmarks/model_checking.py`.

A walk on a torus with jumps: 10^6 states and 10^7 transitions. Its states are built from a text in the PRISM
language, then a bounded property is decided; by Storm (stormpy, its sparse engine with doubles) in a process of its
own. Rounds in turns; imports are not in it. Results go to `benchmarks/results/model_checking.json`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from loomrl.files import write_json
from loomrl.finite.prism.explore import build_model
from loomrl.finite.prism.syntax import read_program, read_property
from loomrl.safety.model_checking.pctl import check
from peers.execute import machine

RESULTS = Path(__file__).parent / "results" / "model_checking.json"
WALK = """
dtmc
const int N;
module walk
  x : [0..N-1] init 0;
  y : [0..N-1] init 0;
  [] true -> 0.1 : (x'=mod(x+1,N)) + 0.1 : (x'=mod(x+2,N)) + 0.1 : (x'=mod(x+3,N)) + 0.1 : (x'=mod(x+N-1,N))
           + 0.1 : (y'=mod(y+1,N)) + 0.1 : (y'=mod(y+2,N)) + 0.1 : (y'=mod(y+3,N)) + 0.1 : (y'=mod(y+N-1,N))
           + 0.1 : (x'=mod(x*7+y+5,N)) + 0.1 : (y'=mod(y*5+x+9,N));
endmodule
label "corner" = x>=N-10 & y>=N-10;
"""
PROPERTY = 'P=? [ F<=100 "corner" ]'
STORM = """
import json, sys, time
import stormpy
begun = time.perf_counter()
program = stormpy.parse_prism_program(sys.argv[1])
properties = stormpy.parse_properties(sys.argv[2], program)
program, properties = stormpy.instantiate_constants(program, {"N": int(sys.argv[3])}, properties)
model = stormpy.build_model(program, properties)
built = time.perf_counter()
value = stormpy.model_checking(model, properties[0]).get_value(model.initial_states[0])
print(json.dumps({"build": built - begun, "check": time.perf_counter() - built, "value": value,
                  "states": model.nr_states, "transitions": model.nr_transitions}))
"""


def ask_loomrl(size: int) -> dict[str, Any]:
    """Seconds to build and to check, and the bounds."""
    begun = time.perf_counter()
    chain = build_model(read_program(WALK), {"N": size}).only_chain()
    built = time.perf_counter()
    answer = check(chain, read_property(PROPERTY))
    return {
        "build": built - begun,
        "check": time.perf_counter() - built,
        "low": answer.low,
        "high": answer.high,
        "states": len(chain.states),
        "transitions": len(chain.columns),
    }


def ask_storm(size: int) -> dict[str, Any]:
    """Seconds to build and to check, and the value."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "walk.prism"
        model.write_text(WALK)
        command = [sys.executable, "-c", STORM, str(model), PROPERTY, str(size)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """See the module's description; ends with 1 when the two disagree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=1_000, help="states along each side")
    options = parser.parse_args()
    ask_loomrl(10)  # compiled code is loaded
    rounds = []
    for _ in range(options.rounds):
        ours, theirs = ask_loomrl(options.size), ask_storm(options.size)
        agree = ours["low"] - 1e-6 <= theirs["value"] <= ours["high"] + 1e-6
        rounds.append({"loomrl": ours, "storm": theirs, "agree": agree})
        print(
            f"LoomRL {ours['build']:.1f} + {ours['check']:.1f} s, Storm {theirs['build']:.1f} + {theirs['check']:.1f} s"
        )
    ratio = statistics.median(
        sum(one["storm"][part] for part in ("build", "check")) / sum(one["loomrl"][part] for part in ("build", "check"))
        for one in rounds
    )
    versions = {name: version(name) for name in ("numba", "numpy", "stormpy")}
    document = {
        "property": PROPERTY,
        "rounds": rounds,
        "times_faster": ratio,
        "machine": machine(),
        "versions": versions,
    }
    write_json(RESULTS, document)
    print(f"{ratio:.1f} times as fast as Storm; {rounds[0]['loomrl']['states']} states")
    return 0 if all(one["agree"] for one in rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
