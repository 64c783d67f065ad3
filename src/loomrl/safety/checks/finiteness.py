"""Every output of the policy is finite, on visited, random and extreme observations.

Not only the action: a discrete action is finite even where the logits it was chosen from are not.
"""

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from loomrl.safety.case.counterexample import Failure, Replayed
from loomrl.safety.check import FALSIFICATION, Context, Scope
from loomrl.safety.probing.probes import ProbeConfig, ask_outputs
from loomrl.types import Bound, Claim, Verdict

NAME = "finiteness"
STAGE = FALSIFICATION
LOCAL = True


class FinitenessConfig(ProbeConfig):
    """How many observations of each kind the check asks the policy about: more of the extreme ones."""

    num_extreme: int = Field(default=2_048, ge=1)


Config = FinitenessConfig  # as all plug-ins of this kind name it


def examine(context: Context, config: FinitenessConfig) -> list[Claim]:
    """One claim; any output that is not finite refutes it."""
    tried = config.observations(context, NAME)
    obs = np.concatenate(list(tried.values()))
    bad = {name: not_finite(values) for name, values in ask_outputs(context.policy, obs).items()}
    failing = np.flatnonzero(np.any(list(bad.values()), axis=0))
    names = sorted(name for name, marks in bad.items() if np.any(marks))
    evidence = {
        "kind": NAME,
        "tried": {name: len(batch) for name, batch in tried.items()},
        "outputs": sorted(bad),
        "num_not_finite": len(failing),
        "outputs_not_finite": names,
        "examples": [{"observation": obs[i].tolist()} for i in failing[:3]],
    }
    failure = None
    if len(failing):
        failure = f"for observation {obs[failing[0]].tolist()} the output {names[0]} is not finite"
    return [
        context.claim(
            evidence,
            failure=failure,
            statement="every output of the policy is finite",
            method="search for a failure over visited, uniform random and extreme observations",
            verdict=Verdict.REFUTED if len(failing) else Verdict.SUPPORTED,
            assumptions=["observations that were not tried are not covered one by one"],
            bound=Bound(kind="count", measured=len(failing), limit=0, unit="observations"),
            num_samples=len(obs),
            finding=f"{len(failing)} of {len(obs)} observations give an output that is not finite",
        )
    ]


def scope(config: FinitenessConfig, claim: Claim) -> Scope:  # noqa: ARG001 - a check's signature
    """The scope of a claim: what was examined, what is left open, and what would refute it."""
    return Scope(
        f"all outputs at {claim.num_samples} observations: visited, uniform random and extreme ones",
        "anything about observations that were not tried, or about whether the outputs are right",
        "an output that is NaN or infinite at any of these observations",
    )


def replay(failure: Failure) -> Replayed:
    """Ask the policy about the first observation that failed: reproduced where an output is not finite again."""
    obs = failure.observation()
    outputs = ask_outputs(failure.policy, obs)
    bad = sorted(name for name, values in outputs.items() if not_finite(values)[0])
    finding = f"for {obs[0].tolist()} these outputs are not finite: {', '.join(bad) or 'none'}"
    return Replayed(reproduced=bool(bad), finding=finding)


def not_finite(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Which rows hold a value that is not finite, (N, ...) -> (N,)."""
    if values.dtype.kind != "f":
        return np.zeros(len(values), dtype=np.bool_)
    return np.asarray(~np.all(np.isfinite(values).reshape(len(values), -1), axis=1))
