"""What a safety check is, and what it is given. `loomrl.safety.registry` finds them.

A check is one module in `loomrl/safety/checks/`, or one that an installed package names under the entry-point group
`loomrl.safety_checks`. It has NAME, STAGE, LOCAL, Config and examine(). One whose claims carry counterexamples also
has replay(failure: Failure) -> Replayed (loomrl.safety.case.counterexample), which `loomrl safety replay` calls. One
whose config can be wrong for an environment has check_spaces(config, observation_space, action_space), and where that
takes more than spaces check_environment(config, snapshot_folder): both are asked before training. One that makes no
sense in some spaces has not_applicable(observation_space, action_space): the reason, which the case then records, or
None. scope(config, claim) -> Scope says of each of its claims what was examined, what is not established and what
would have made it false. episode_limits(context, config) -> {claim id: ConstraintConfig} names the claims that are
about a limit in the shared episodes, so that those about one event are counted once (loomrl.safety.probing.repeats).
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from loomrl.safety.config import SafetyConfig
from loomrl.system.schema import Section
from loomrl.types import ActFunction, Claim, EnvironmentSnapshot, Episode, Policy, Verdict

if TYPE_CHECKING:
    from loomrl.safety.case.evidence import EvidenceWriter  # the case knows what a check is

# The stages a claim may belong to, in the order a case lists them.
PROVENANCE = "provenance and parity"
STATISTICAL = "statistical limits"
FALSIFICATION = "falsification"
CERTIFIED = "certified local properties"
MODEL_CHECKING = "probabilistic model checking"
REWARD_HACKING = "reward hacking"
REWARD_BIAS = "reward bias"
OUT_OF_DISTRIBUTION = "out-of-distribution calibration"
STAGES = (
    *(PROVENANCE, STATISTICAL, FALSIFICATION, CERTIFIED, MODEL_CHECKING),
    *(REWARD_HACKING, REWARD_BIAS, OUT_OF_DISTRIBUTION),
)


NOT_EXAMINED = "none: it could not be examined"  # the method of such a claim


def why_not_applicable(check: "Check", context: "Context") -> str | None:
    """Why a check makes no sense for what a policy observes and does; None where it does."""
    ask = getattr(check, "not_applicable", None)
    reason: str | None = None if ask is None else ask(context.observation_space, context.action_space)
    return reason


class Scope(NamedTuple):
    """What a claim rests on and how far it reaches, each in a short sentence."""

    examined: str  # with counts
    not_established: str
    false_if: str  # what would have made it false


def scope_of(check: "Check", config: "CheckConfig", claim: Claim) -> Scope:
    """What a check says of one of its claims; where it says nothing, that it does not."""
    if claim.method == NOT_EXAMINED:
        return Scope(f"nothing: {claim.finding}", "anything about the statement", "nothing: it was not examined")
    say = getattr(check, "scope", None)
    if say is not None:
        return Scope(*say(config, claim))
    samples = "" if claim.num_samples is None else f"{claim.num_samples} samples: "
    unsaid = f"the check {check.NAME} does not say"
    return Scope(f"{samples}{claim.method}", unsaid, unsaid)


def undecided(name: str, stage: str, statement: str, mandatory: bool, why: str) -> Claim:
    """A claim that could not be examined: the case is written all the same, and says why."""
    return Claim(
        id=name,
        stage=stage,
        statement=statement,
        mandatory=mandatory,
        method=NOT_EXAMINED,
        verdict=Verdict.UNDECIDED,
        finding=why,
    )


class CheckConfig(Section):
    """Base of the configs of all safety checks."""

    enabled: bool = True
    mandatory: bool = True


@dataclass(frozen=True)
class Context:
    """All a check may look at. `visited` are observations of recorded episodes, (N, *obs).

    `episodes` are the shared held-out safety episodes, played once; empty when local claims are re-checked, because
    those need no environment. `play(act, seeds)` plays others.
    """

    policy: Policy
    snapshot: EnvironmentSnapshot
    config: SafetyConfig
    snapshot_folder: Path
    policy_folder: Path | None
    evaluation_folder: Path
    observation_space: Any
    action_space: Any
    visited: NDArray[Any]
    episodes: Sequence[Episode]
    play: Callable[[ActFunction, Sequence[int]], list[Episode]]
    evidence: "EvidenceWriter"

    def rng(self, name: str) -> np.random.Generator:
        """A generator of a check's own: what one check draws does not depend on which others run."""
        return np.random.default_rng([self.config.first_seed, zlib.crc32(name.encode())])


class Check(Protocol):
    """The names that a check's module must offer."""

    NAME: str  # also the first part of its claims' ids
    STAGE: str
    LOCAL: bool  # whether its claims need no environment, so that they can be re-checked on the exported graph
    Config: type[CheckConfig]

    def examine(self, context: Context, config: Any) -> list[Claim]:
        """The check's claims about the policy; `config` is an instance of this check's Config."""
