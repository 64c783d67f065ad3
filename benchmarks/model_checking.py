"""Model checking of a large chain, beside Storm, and a million steps behind shields.

    python benchmarks/model_checking.py

A walk on a torus with jumps: 10^6 states and 10^7 transitions. Its states are built from a text in the PRISM
language, then a bounded property is decided; by Storm (stormpy, its sparse engine with doubles) in a process of its
own. Rounds in turns; imports are not in it. Then random actions are taken in environments behind their shields. Results
go to `benchmarks/results/model_checking.json`. Ends with 1 when a value is another one than Storm's, a round takes a
minute or more, the chain is too small, or anything unsafe happened.
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

import numpy as np

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.finite.prism.explore import build_model
from loomrl.environment.finite.prism.syntax import read_program, read_property
from loomrl.environment.make import make_env
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.safety.model_checking.pctl import check
from loomrl.system.files import write_json
from peers.execute import machine

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.support import prism_models

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
HOLE = '"terminated" & s!='
SHIELDED: dict[str, tuple[dict[str, Any], str]] = {
    "lake": ({"id": "FrozenLake-v1"}, f"{HOLE}15"),
    "large lake": ({"id": "FrozenLake-v1", "kwargs": {"map_name": "8x8"}}, f"{HOLE}63"),
    "ring": (
        {
            "id": "ring",
            "entry_point": "loomrl.gym.prism:PrismEnvironment",
            "kwargs": {"model": prism_models.RING, "terminal": "crash"},
            "max_episode_steps": 200,
        },
        '"crash"',
    ),
}
MOST_SECONDS = 60.0
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


def behind_a_shield(name: str, num_steps: int) -> dict[str, Any]:
    """Random actions in an environment that is taken through a snapshot, as training takes it."""
    described, unsafe = SHIELDED[name]
    config = EnvironmentConfig.model_validate({**described, "shield": {"unsafe": unsafe}})
    with tempfile.TemporaryDirectory() as folder:
        take_snapshot(config, Path(), Path(folder))
        env = make_env(Path(folder))
        rng, replaced, violations, episodes = np.random.default_rng(1), 0.0, 0, 0
        env.reset(seed=1)
        for action in rng.integers(env.action_space.n, size=num_steps):
            _, reward, terminated, truncated, info = env.step(action)
            replaced += info["shielded"]
            violations += bool(info["crash"]) if "crash" in info else terminated and reward == 0.0
            if terminated or truncated:
                episodes += 1
                env.reset()
        env.close()
    return {
        "environment": name,
        "steps": num_steps,
        "episodes": episodes,
        "replaced": replaced / num_steps,
        "violations": int(violations),
    }


def main() -> int:
    """See the module's description."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=1_001, help="states along each side")
    parser.add_argument("--steps", type=int, default=1_000_000, help="behind shields, over all environments")
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
    shields = [behind_a_shield(name, -(-options.steps // len(SHIELDED))) for name in SHIELDED]
    versions = {name: version(name) for name in ("numba", "numpy", "stormpy")}
    document = {
        "property": PROPERTY,
        "rounds": rounds,
        "times_faster": ratio,
        "shields": shields,
        "machine": machine(),
        "versions": versions,
    }
    write_json(RESULTS, document)
    print(f"{ratio:.1f} times as fast as Storm; {rounds[0]['loomrl']['states']} states")
    print(f"{sum(one['violations'] for one in shields)} violations in {sum(one['steps'] for one in shields)} steps")
    return 0 if reached(document) else 1


def reached(document: dict[str, Any]) -> bool:
    """Whether all holds that must."""
    ours = [one["loomrl"] for one in document["rounds"]]
    return (
        all(one["agree"] for one in document["rounds"])
        and all(one["build"] + one["check"] < MOST_SECONDS for one in ours)
        and all(one["states"] >= 1e6 and one["transitions"] >= 1e7 for one in ours)
        and sum(one["steps"] for one in document["shields"]) >= 1e6
        and not any(one["violations"] for one in document["shields"])
    )


if __name__ == "__main__":
    sys.exit(main())
