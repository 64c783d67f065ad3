"""What a safety check is, and what it is given. `loomrl.safety.registry` finds them.

A check is one module in `loomrl/safety/checks/`, or one that an installed package names under the entry-point group
`loomrl.safety_checks`. It has NAME, STAGE, LOCAL, Config and examine(). One whose claims carry counterexamples also
has replay(failure: Failure) -> Replayed (loomrl.safety.case.counterexample), which `loomrl safety replay` calls. One
whose config can be wrong for an environment has check_spaces(config, observation_space, action_space), and where that
takes more than spaces check_environment(config, snapshot_folder): both are asked before training. One that makes no
sense in some spaces has not_applicable(observation_space, action_space): the reason, which the case then records, or
None. scope(config, claim) -> Scope says of each of its claims what was examined, what is not established and what
would have made it false. episode_limits(context, config) -> {claim id: ConstraintConfig} names the claims that are
about a limit in the shared episodes, so that those about one event are counted once (loomrl.safety.probing.repeats);
the evidence of one that rests on further episodes says in num_violating_episodes how many of all break its limit, and
in violating_seeds which.
disturbed_limits(context, config) names in the same way the claims about a limit in episodes under a disturbance.
demands(context, config) -> {claim id: Demand} says of other claims what they ask for, so that one which asks for no
more than another one is not counted.
"""

import zlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Required, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from loomrl.safety.config import ConstraintConfig, SafetyConfig
from loomrl.system.schema import Section
from loomrl.types import (
    ActFunction,
    Bound,
    Claim,
    ClaimLabel,
    Counterexample,
    EnvironmentSnapshot,
    Episode,
    Evidence,
    Json,
    Policy,
    Verdict,
)

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


HOLDS = (Verdict.PROVED, Verdict.SUPPORTED)  # what an examined claim that is met came out as
NOT_EXAMINED = "none: it could not be examined"  # the method of such a claim
_LONGEST_WHOLE = 1e15  # larger ones are no longer exact in every digit
PLACEHOLDER = "{case}"  # stands for the case's folder until the gate knows where that is


def why_not_applicable(check: "Check", context: "Context") -> str | None:
    """Why a check makes no sense for what a policy observes and does; None where it does."""
    ask = getattr(check, "not_applicable", None)
    reason: str | None = None if ask is None else ask(context.observation_space, context.action_space)
    return reason


class Demand(NamedTuple):
    """What a claim asks for, to be compared: of two about one `subject` the one asks for no more than the other none of
    whose `numbers` is smaller than its own."""

    subject: tuple[Hashable, ...]
    numbers: tuple[float, ...] = ()

    def covers(self, other: "Demand") -> bool:
        """Whether what is asked for holds only where what the other asks for holds as well."""
        if self.subject != other.subject:
            return False
        return all(own >= its for own, its in zip(self.numbers, other.numbers, strict=True))


class Scope(NamedTuple):
    """What a claim rests on and how far it reaches, each in a short sentence: what was examined, with counts, what that
    does not establish, and what would have made the claim false."""

    examined: str  # with counts
    not_established: str
    false_if: str  # what would have made it false

    @classmethod
    def nothing(cls, why: str) -> "Scope":
        """Of a claim about something that was not examined."""
        return cls(f"nothing: {why}", "anything about the statement", "nothing: it was not examined")

    def of(self, claim: Claim, **facts: object) -> "Scope":
        """These sentences with the claim's own `{count}` and `{limit}` put in, and other facts by their names."""
        known = {"count": claim.num_samples, "limit": limit_of(claim), **facts}
        return Scope(*(sentence.format(**known) for sentence in self))


def limit_of(claim: Claim) -> str:
    """What a claim's number is held against, in words where the claim names none, or only how many units it takes."""
    return "the limit" if claim.bound is None or claim.bound.kind == "units" else in_figures(claim.bound.limit)


def in_figures(value: float) -> str:
    """A number as sentences of claims show it: a whole one in full, another with six significant figures."""
    is_whole = float(value).is_integer() and abs(value) < _LONGEST_WHOLE
    return str(int(value)) if is_whole else f"{value:g}"


def scope_of(check: "Check", config: "CheckConfig", claim: Claim) -> Scope:
    """What a check says of one of its claims; where it says nothing, that it does not."""
    if claim.method == NOT_EXAMINED:
        return Scope.nothing(claim.finding)
    say = getattr(check, "scope", None)
    if say is not None:
        return Scope(*say(config, claim))
    samples = "" if claim.num_samples is None else f"{claim.num_samples} samples: "
    unsaid = f"the check {check.NAME} does not say"
    return Scope(f"{samples}{claim.method}", unsaid, unsaid)


class CheckConfig(Section):
    """Base of the configs of all safety checks. Those of a check that is not `enabled` are not made; where it is not
    `mandatory`, its claims block nothing."""

    enabled: bool = True
    mandatory: bool = True


@dataclass(frozen=True)
class Judgement:
    """What a test at the gate's confidence says of a limit: SUPPORTED, REFUTED or UNDECIDED, with the bound that
    decides.

    `p_value` is that of the hypothesis that the claim is false.
    """

    verdict: Verdict
    bound: Bound
    p_value: float  # of the hypothesis that the claim is false


class ClaimFields(TypedDict, total=False):
    """What a check says of a claim itself, in the fields of `Claim`. Verdict and bound are those of the judgement where
    there is one, and it is mandatory if the check's config says so: what stands here goes before that."""

    statement: Required[str]
    method: Required[str]
    verdict: Verdict
    finding: Required[str]
    mandatory: bool
    assumptions: list[str]
    confidence: float
    bound: Bound | None
    num_samples: int
    label: ClaimLabel | None


@dataclass(frozen=True)
class Context:
    """All a check may look at. `visited` are observations of recorded episodes, (N, *obs).

    `episodes` are the shared held-out safety episodes, played once; empty when local claims are re-checked, because
    those need no environment. `play(act, seeds)` plays others. `claim` makes what a check returns: claims with the
    check's name and stage, and with their evidence written.
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
    check: str = ""  # the check that looks: its name and stage, and whether its claims are mandatory
    stage: str = ""
    mandatory: bool = True

    def of(self, check: "Check", settings: CheckConfig) -> "Context":
        """The same context for one check with its config, so that its claims get the check's name and stage."""
        return replace(self, check=check.NAME, stage=check.STAGE, mandatory=settings.mandatory)

    def claim(
        self,
        evidence: Json,
        name: str = "",
        failure: str | tuple[str, Episode] | None = None,
        beside: Sequence[Evidence] = (),
        judged: Judgement | None = None,
        **fields: Unpack[ClaimFields],
    ) -> Claim:
        """The check's claim of this name, or its only one, with its evidence written, after what is cited `beside`.

        `failure` says what happens in the counterexample: in what the evidence holds, where an observation stands first
        among its examples, or in the episode that comes with it. `fields` are those of `Claim`; they go before what
        `judged` says.
        """
        claim = f"{self.check}.{name}" if name else self.check
        written, found = self.evidence.json(claim, evidence), None
        if failure is not None:
            told, episode = (failure, None) if isinstance(failure, str) else failure
            found = Counterexample(
                description=told,
                seed=None if episode is None else episode.seed,
                evidence=written if episode is None else self.evidence.episode(f"{claim}.counterexample", episode),
                replay_command=f"loomrl safety replay {PLACEHOLDER} {claim}",
            )
        given: dict[str, Any] = {"mandatory": self.mandatory}
        if judged is not None:
            given |= vars(judged) | {"confidence": self.config.confidence}
        cited = [*beside, written]
        return Claim(id=claim, stage=self.stage, evidence=cited, counterexample=found, **(given | {**fields}))

    def constraints_by_claim(self) -> dict[str, ConstraintConfig]:
        """The declared constraints, by the ids of the check's claims that are named like them."""
        return {f"{self.check}.{constraint.name}": constraint for constraint in self.config.constraints}

    def undecided(self, statement: str, why: str, name: str = "") -> Claim:
        """An UNDECIDED claim that could not be examined, without evidence: the case is written all the same, and says
        why."""
        return Claim(
            id=f"{self.check}.{name}" if name else self.check,
            stage=self.stage,
            statement=statement,
            mandatory=self.mandatory,
            method=NOT_EXAMINED,
            verdict=Verdict.UNDECIDED,
            finding=why,
        )

    def rng(self, name: str) -> np.random.Generator:
        """A new generator of a check's own, the same for the same name and config: what one check draws does not depend
        on which others run."""
        return np.random.default_rng([self.config.first_seed, zlib.crc32(name.encode())])


class Check(Protocol):
    """The names that a check's module must offer.

    NAME is also the first part of its claims' ids, STAGE one of `STAGES`. LOCAL says whether its claims need no
    environment, so that they can be re-checked on the exported graph.
    """

    NAME: str  # also the first part of its claims' ids
    STAGE: str
    LOCAL: bool  # whether its claims need no environment, so that they can be re-checked on the exported graph
    Config: type[CheckConfig]

    def examine(self, context: Context, config: Any) -> list[Claim]:
        """The check's claims about the policy, none where it asks nothing; `config` is an instance of this check's
        Config.

        Raises:
            LoomRLError: when the config does not fit, an input cannot be read, or the environment breaks its API. A
                claim that is refuted is no error.
        """
