"""What a safety check is, what it is given, and how checks are found.

A check is one module in `loomrl/safety/checks/`, or one that an installed package names under the entry-point group
`loomrl.safety_checks`. It has NAME, STAGE, LOCAL, Config and examine(). One whose claims carry counterexamples also
has replay(failure: Failure) -> Replayed (loomrl.safety.case.counterexample), which `loomrl safety replay` calls. One
whose
config can be wrong for an environment has check_spaces(config, observation_space, action_space), and where that takes
more than spaces check_environment(config, snapshot_folder): both are asked before training. One that makes no
sense in some spaces has not_applicable(observation_space, action_space): the reason, which the case then records, or
None. scope(config, claim) -> Scope says of each of its claims what was examined, what is not established and what
would have made it false. episode_limits(context, config) -> {claim id: ConstraintConfig} names the claims that are
about a limit in the shared episodes, so that those about one event are counted once (loomrl.safety.probing.repeats).
"""

import importlib
import pkgutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from loomrl.errors import ConfigError
from loomrl.safety.case.evidence import EvidenceWriter
from loomrl.safety.config import SafetyConfig
from loomrl.system.schema import Section
from loomrl.types import ActFunction, Claim, EnvironmentSnapshot, Episode, Policy, Verdict

GROUP = "loomrl.safety_checks"

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
    evidence: EvidenceWriter

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


def find_checks() -> dict[str, Check]:
    """All checks by name: this package's folder, then entry points.

    Raises:
        ConfigError: when a check lacks a part of the contract, or two have one name.
    """
    from loomrl.safety import checks

    modules = [
        importlib.import_module(f"{checks.__name__}.{found.name}") for found in pkgutil.iter_modules(checks.__path__)
    ]
    modules += [point.load() for point in _entry_points()]
    found: dict[str, Check] = {}
    for module in modules:
        check = _checked(module)
        if check.NAME in found:
            raise ConfigError(f"two safety checks are named {check.NAME!r}; rename the one in {_name(module)}")
        found[check.NAME] = check
    return dict(sorted(found.items()))


def configured_checks(config: SafetyConfig) -> list[tuple[Check, CheckConfig]]:
    """The enabled checks with their configs.

    Raises:
        ConfigError: for a check that does not exist, a config it does not accept, or one that switches off what must
            not be: provenance ever, and where `safety_critical: true`, local checks that are mandatory by default.
    """
    found = find_checks()
    if unknown := sorted(config.checks.keys() - found.keys()):
        raise ConfigError(f"safety.checks.{unknown[0]}: no such check; checks: {', '.join(found)}")
    pairs = [(check, _configure(check, config.checks.get(name, {}))) for name, check in found.items()]
    for check, settings in pairs:
        _refuse_switched_off(check, settings, config.safety_critical)
    return [(check, settings) for check, settings in pairs if settings.enabled]


def check_entry_points(config: SafetyConfig) -> list[EntryPoint]:
    """Where the enabled checks of others come from; raises as `configured_checks` does."""
    if not (points := _entry_points()):
        return []
    enabled = {check.NAME for check, _ in configured_checks(config)}
    return [point for point in points if point.load().NAME in enabled]


def _entry_points() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


def _refuse_switched_off(check: Check, settings: CheckConfig, safety_critical: bool) -> None:
    if check.STAGE == PROVENANCE:
        why = "nothing is known about a policy whose chain of evidence is not whole"
    elif safety_critical and check.LOCAL and check.Config.model_fields["mandatory"].default:
        why = "with `safety_critical: true` this check decides"
    else:
        return
    for key in ("enabled", "mandatory"):
        if not getattr(settings, key):
            raise ConfigError(f"safety.checks.{check.NAME}.{key}: found false, but {why}; remove this key")


def _configure(check: Check, values: dict[str, Any]) -> CheckConfig:
    try:
        return check.Config.model_validate(values)
    except ValidationError as error:
        detail = error.errors()[0]
        key = ".".join(["safety", "checks", check.NAME, *(str(part) for part in detail["loc"])])
        allowed = ", ".join(sorted(check.Config.model_fields))
        raise ConfigError(
            f"{key}: {detail['msg']}, found {detail['input']!r}; keys of this check: {allowed}"
        ) from error


def _checked(module: Any) -> Check:
    for part in ("NAME", "STAGE", "LOCAL", "Config", "examine"):
        if not hasattr(module, part):
            raise ConfigError(f"safety check {_name(module)} has no {part}; see docs/safety.md")
    if module.STAGE not in STAGES:
        raise ConfigError(f"safety check {_name(module)}: STAGE {module.STAGE!r}; stages: {', '.join(STAGES)}")
    return cast(Check, module)


def _name(module: Any) -> str:
    return str(getattr(module, "__name__", module))
