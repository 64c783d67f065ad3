"""How an update's time grows with the number of learners: simulated from measured costs, and measured where it can be.

    python benchmarks/scaling.py            # all of it, on a machine that does nothing else
    python benchmarks/scaling.py vary       # how much the times of rollouts and gradient steps vary
    python benchmarks/scaling.py measure    # updates of 1, 2 and 4 learners here
    python benchmarks/scaling.py simulate   # the same from results/distributed.json, and up to 1,024 learners
    python benchmarks/scaling.py draw       # docs/images/bench_scaling.png and the tables of docs/scaling.md

Each learner does what one alone does: environments and rows of a batch are multiplied by the number of learners.
Figures go to `benchmarks/results/scaling.json`.
"""

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from distributed import CARTPOLE, HALF_CHEETAH, snapshot_of, trained
from distributed import RESULTS as COSTS
from loomrl.runs.stages.__main__ import ONE_THREAD
from loomrl.system.files import read_json, write_json
from loomrl.system.processors import num_processors
from loomrl.system.threads import one_thread
from loomrl.training.config import DistributedConfig, TrainingConfig
from loomrl.training.distributed.cluster import cluster
from loomrl.training.distributed.simulation import (
    Machines,
    Work,
    bytes_per_synchronisation,
    efficiency,
    seconds_per_update,
    synchronisation_seconds,
)
from loomrl.training.job import TrainingJob
from machine import measured_on

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "scaling.json"
PICTURE = ROOT / "docs" / "images" / "bench_scaling.png"
PAGE = ROOT / "docs" / "scaling.md"
BEGIN, END = "<!-- begin: simulation -->\n", "<!-- end: simulation -->\n"

CASES = {  # environment, PPO's parameters of one learner, updates that are measured
    "ppo_cartpole": ("CartPole-v1", CARTPOLE | {"batch_size": 256, "n_epochs": 10}, 300),
    "ppo_halfcheetah": ("HalfCheetah-v5", HALF_CHEETAH, 60),
}
PARTS = ("vary", "measure", "simulate", "draw")
MATRICES = ((64, 17), (64, 64), (6, 64), (64, 17), (64, 64))  # of HalfCheetah's networks
HERE = (1, 2, 4)  # learners on this machine
CLUSTER = tuple(2**power for power in range(11))
ETHERNET = Machines(latency_seconds=50e-6, bytes_per_second=1.25e9, slow_share=0.01, slow_factor=2.0)
LARGE = Work(  # of ten million parameters
    rollout_seconds=1.0,
    gradient_steps=40,
    seconds_per_gradient_step=0.05,
    num_parameters=10_000_000,
    matrices=((1_000, 1_000),) * 10,
    decode_seconds=0.01,
)
SETTINGS: dict[str, dict[str, Any]] = {  # of `training.distributed`; 0: once in an update
    "every gradient": {"sync_frequency": 1},
    "every gradient, powersgd": {"sync_frequency": 1, "compression": {"method": "powersgd"}},
    "once an update": {"sync_frequency": 0},
    "once an update, int8": {"sync_frequency": 0, "compression": {"method": "int8"}},
    "once an update, top_k 1 %": {"sync_frequency": 0, "compression": {"method": "top_k"}},
}
TITLES = {"ppo_halfcheetah": "PPO on HalfCheetah, as measured", "large": "ten million parameters, 3 s an update"}


# --- on this machine ---


def measure() -> list[dict[str, Any]]:
    """Seconds of an update by learners here, joined in every gradient and once."""
    updates = []
    with cluster(DistributedConfig(num_learners=max(HERE), resources_per_learner={"CPU": 0.5})):
        for name, (environment, parameters, count) in CASES.items():
            for num_learners in HERE:
                for every in (1, steps_of(parameters)) if num_learners > 1 else (1,):
                    seconds = update_seconds(environment, parameters, count, num_learners, every)
                    row = {"case": name, "learners": num_learners, "sync_frequency": every, "measured_seconds": seconds}
                    print(row, flush=True)
                    updates.append(row)
    return updates


def update_seconds(
    environment: str, parameters: dict[str, Any], count: int, num_learners: int, sync_frequency: int
) -> float:
    """Of one update, in the mean of those after the first ones."""
    whole = {name: num_learners * parameters[name] for name in ("num_envs", "batch_size")}
    per_update = whole["num_envs"] * parameters["rollout_length"]
    distributed = {
        "num_learners": num_learners,
        "sync_frequency": sync_frequency,
        "resources_per_learner": {"CPU": 0.5},
    }
    case = (environment, count * per_update, parameters | whole)
    return per_update / trained(case, distributed if num_learners > 1 else None)[0]


def spread_of(environment: str, parameters: dict[str, Any]) -> dict[str, float]:
    """Standard deviations over means, of the processor seconds of one learner's rollouts and of its gradient steps."""
    with snapshot_of(environment) as folder:
        job = TrainingJob.of(
            TrainingConfig.model_validate({"total_env_steps": 1, "parameters": parameters}), folder / "snapshot"
        )
        seconds = np.array([*parts_of_updates(job, folder)][5:])
    spread = seconds.std(axis=0, ddof=1) / seconds.mean(axis=0)
    return {"rollout": float(spread[0]), "gradient_step": float(spread[1] * np.sqrt(steps_of(parameters)))}


def parts_of_updates(job: TrainingJob, folder: Path) -> Iterator[tuple[float, float]]:
    """Processor seconds of collecting and of learning, again and again."""
    algorithm: Any = job.algorithm(folder)
    rng = np.random.default_rng(0)
    with closing(job.environments_to_learn_from(algorithm.num_envs, "same_step")) as envs, one_thread(job.engine):
        collector = algorithm.collector(envs, 0)
        for _ in range(105):
            began = time.process_time()
            trajectory = collector.collect(algorithm.rollout_length, rng)
            collected = time.process_time()
            algorithm.update(trajectory, rng)
            yield collected - began, time.process_time() - collected


def steps_of(parameters: dict[str, Any]) -> int:
    """Gradient steps of an update."""
    rows = parameters["num_envs"] * parameters["rollout_length"]
    return int(rows // parameters["batch_size"] * parameters["n_epochs"])


# --- simulated ---


def simulate(spreads: dict[str, dict[str, float]], updates: list[dict[str, Any]]) -> dict[str, Any]:
    """What was measured, from its costs; and clusters."""
    costs = read_json(COSTS)["costs"]["figures"]
    works = {name: work_of(costs["steps"][name], spreads[name]) for name in CASES}
    spread = spreads["ppo_halfcheetah"]
    large = replace(LARGE, rollout_spread=spread["rollout"], gradient_step_spread=spread["gradient_step"])
    clusters = {"ppo_halfcheetah": works["ppo_halfcheetah"], "large": large}
    return {
        "agreement": [agreement(row, works[row["case"]], costs["all_reduce_seconds"]) for row in updates],
        "work": {name: asdict(work) for name, work in (works | clusters).items()},
        "machines": asdict(ETHERNET),
        "clusters": {name: curves(work) for name, work in clusters.items()},
    }


def work_of(costs: dict[str, Any], spread: dict[str, float]) -> Work:
    """As it was measured for one learner."""
    return Work(
        rollout_seconds=costs["environment_steps_per_update"] * costs["seconds_per_environment_step"],
        gradient_steps=int(costs["gradient_steps_per_update"]),
        seconds_per_gradient_step=costs["seconds_per_gradient_step"],
        num_parameters=costs["num_parameters"],
        matrices=MATRICES,
        rollout_spread=spread["rollout"],
        gradient_step_spread=spread["gradient_step"],
    )


def agreement(row: dict[str, Any], work: Work, all_reduce_seconds: dict[str, dict[str, float]]) -> dict[str, Any]:
    """A measured row with what the simulation says. More learners than cores take turns on them."""
    count = row["learners"]
    turns = max(1.0, count / num_processors())
    slowed = replace(
        work,
        rollout_seconds=turns * work.rollout_seconds,
        seconds_per_gradient_step=turns * work.seconds_per_gradient_step,
    )
    config = DistributedConfig(num_learners=count, sync_frequency=row["sync_frequency"])
    found = seconds_per_update(config, slowed, loopback(count, all_reduce_seconds), np.random.default_rng(0)).mean()
    error = float(found) / row["measured_seconds"] - 1.0
    return {**row, "simulated_seconds": float(found), "relative_error": error}


def loopback(num_learners: int, all_reduce_seconds: dict[str, dict[str, float]]) -> Machines:
    """The network within this machine, from all-reduces of 100 and of a million float32."""
    if num_learners == 1:
        return Machines(0.0, np.inf)
    found, messages = all_reduce_seconds[str(num_learners)], 2 * (num_learners - 1)
    longer = found["1000000"] - found["100"]
    return Machines(found["100"] / messages, messages * 4e6 / num_learners / longer)


def curves(work: Work) -> dict[str, Any]:
    """Efficiency, bytes and seconds of a synchronisation, for each setting and number of learners."""
    found: dict[str, Any] = {}
    for label, setting in SETTINGS.items():
        every = setting["sync_frequency"] or work.gradient_steps
        rows = {}
        for count in CLUSTER:
            config = DistributedConfig.model_validate({**setting, "sync_frequency": every, "num_learners": count})
            rows[str(count)] = {
                "efficiency": efficiency(config, work, ETHERNET, np.random.default_rng(count)),
                "synchronisation_seconds": synchronisation_seconds(config, work, ETHERNET),
            }
        found[label] = {"bytes_per_synchronisation": bytes_per_synchronisation(config.compression, work), "by": rows}
    return found


# --- shown ---


def draw(results: dict[str, Any]) -> None:
    """Efficiency over the number of learners."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context("default"):  # whatever the user's matplotlibrc says
        figure = Figure(figsize=(9, 3.8), dpi=110, layout="constrained")
        for axes, (name, title) in zip(figure.subplots(1, 2, sharey=True), TITLES.items(), strict=True):
            for number, (label, setting) in enumerate(results["simulated"]["clusters"][name].items()):
                shares = [setting["by"][str(count)]["efficiency"] for count in CLUSTER]
                axes.plot(CLUSTER, shares, label=label, color=f"C{number}", marker=".", markersize=4)
            axes.set_xscale("log", base=2)
            axes.set_xticks(CLUSTER[::2], [f"{count:,}" for count in CLUSTER[::2]])
            axes.set_title(title, fontsize=10)
            axes.set(xlabel="learners", ylim=(0, 1.02))
            axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="lower left")
        figure.axes[0].set_ylabel("efficiency")
        figure.savefig(PICTURE, format="png", metadata={"Software": None})


def rendered(text: str) -> str:
    """The page with the tables of the results."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    simulated = read_json(RESULTS)["simulated"]
    return before + BEGIN + "\n".join([*agreement_table(simulated), *cluster_table(simulated), ""]) + END + after


def agreement_table(simulated: dict[str, Any]) -> Iterator[str]:
    """Measured and simulated updates, where some were measured."""
    rows = simulated["agreement"]
    if not rows:
        return
    error = statistics.median(abs(row["relative_error"]) for row in rows)
    yield f"On one machine the simulation is off by {100 * error:.0f} % in the median:\n"
    yield "| | learners | gradient steps per synchronisation | ms an update, measured | simulated | error |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        times = f"{1e3 * row['measured_seconds']:.1f} | {1e3 * row['simulated_seconds']:.1f}"
        every = row["sync_frequency"] if row["learners"] > 1 else "–"
        yield f"| {row['case']} | {row['learners']} | {every} | {times} | {100 * row['relative_error']:+.0f} % |"
    yield "\nOn clusters:\n"


def cluster_table(simulated: dict[str, Any]) -> Iterator[str]:
    """Efficiency by setting."""
    shown = [str(count) for count in (2, 8, 32, 128, 512)]
    yield "| | bytes per synchronisation | " + " | ".join(f"{count} learners" for count in shown) + " |"
    yield "|---" * (2 + len(shown)) + "|"
    for name, title in TITLES.items():
        for label, setting in simulated["clusters"][name].items():
            shares = " | ".join(f"{100 * setting['by'][count]['efficiency']:.0f} %" for count in shown)
            yield f"| {title}: {label} | {setting['bytes_per_synchronisation']:,.0f} | {shares} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help="default: all")
    parts = parser.parse_args().parts or PARTS
    os.environ |= ONE_THREAD
    results = read_json(RESULTS) if RESULTS.exists() else {"updates": []}
    if "vary" in parts:
        spreads = {name: spread_of(*case[:2]) for name, case in CASES.items()}
        results |= {"spreads": spreads, "measured_on": measured_on()}
    if "measure" in parts:
        results |= {"updates": measure(), "measured_on": measured_on()}
    if "simulate" in parts:
        results["simulated"] = simulate(results["spreads"], results["updates"])
    write_json(RESULTS, results)
    if "draw" in parts:
        draw(results)
        PAGE.write_text(rendered(PAGE.read_text()))


if __name__ == "__main__":
    main()
