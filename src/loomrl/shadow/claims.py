"""What shadow claims about a challenger, each held against the config's limit."""

from functools import partial

from loomrl.safety.check import in_figures
from loomrl.shadow.comparison import ShadowComparison
from loomrl.shadow.config import ShadowConfig
from loomrl.shadow.following import claims_of, verdict_at_most
from loomrl.shadow.scope import scope_of
from loomrl.types import Bound, Claim, ClaimLabel, Consequences, Interval, LabelKind, Verdict

_STEPS = "steps of one unit may depend on each other, units do not: agents where several were watched, else episodes"
_NEVER_BY_CHANCE = "by chance they would agree in no decision, and less often than never they cannot"
_GOOD = (Verdict.PROVED, Verdict.SUPPORTED)
_claim = partial(Claim, stage="shadow", mandatory=True)


def judge(config: ShadowConfig, comparison: ShadowComparison, consequences: Consequences) -> list[Claim]:
    """Every claim the config asks for, with what it rests on; those that need a champion only where there is one.

    First come the claims about the decisions, whose units are agents or episodes, then those about what followed
    (`loomrl.shadow.following`). What was not measured gives an UNDECIDED claim; nothing is raised.
    """
    claims = [_enough(config, comparison), _no_errors(comparison), *_latencies(config, comparison)]
    claims.append(_would_be_violations(config, comparison, consequences))
    if not comparison.has_champion:
        claims.append(_bitwise_equal(comparison))
    if comparison.agreement is not None:
        claims.append(_not_contrary(comparison, comparison.agreement, consequences))
    if comparison.has_champion:
        claims += _configured(config, comparison)
    shared = {"assumptions": [_STEPS], "confidence": comparison.confidence, "num_samples": comparison.num_decisions}
    made = [*(claim.model_copy(update=shared) for claim in claims), *claims_of(consequences, config)]
    return [claim.model_copy(update=scope_of(claim, comparison, consequences)._asdict()) for claim in made]


def passes(claims: list[Claim]) -> bool:
    """Whether every mandatory claim is met; an undecided one blocks. False without any claim."""
    return bool(claims) and all(claim.verdict in _GOOD for claim in claims if claim.mandatory)


def _configured(config: ShadowConfig, comparison: ShadowComparison) -> list[Claim]:
    claims, count = [], comparison.num_units
    if (limit := config.min_agreement) is not None:
        statement = f"the challenger agrees with the champion in at least {limit:.1%} of the decisions"
        claims.append(_at_least("agreement", statement, comparison.agreement, limit, count))
    if (limit := config.max_action_distance) is not None:
        statement = f"the challenger's actions lie within {in_figures(limit)} of the champion's on average"
        claims.append(_at_most("action_distance", statement, comparison.action_distance, limit, count))
    if (limit := config.max_value_drop) is not None:
        statement = f"the challenger expects at most {in_figures(limit)} less than the champion"
        claims.append(_at_least("value_drop", statement, comparison.value_difference, -limit, count))
    return claims


def _enough(config: ShadowConfig, comparison: ShadowComparison) -> Claim:
    found, wanted = comparison.num_decisions, config.min_decisions
    return _claim(
        id="shadow.min_decisions",
        statement=f"at least {wanted} decisions were watched",
        verdict=Verdict.PROVED if found >= wanted else Verdict.UNDECIDED,
        method="count of audit records",
        bound=Bound(kind="count", measured=found, limit=wanted, unit="decisions"),
        finding=comparison.shortfall if found < wanted else "",
    )


def _no_errors(comparison: ShadowComparison) -> Claim:
    found = comparison.num_errors
    return _claim(
        id="shadow.challenger_errors",
        statement="the challenger answered every mirrored request",
        verdict=Verdict.PROVED if found == 0 else Verdict.REFUTED,
        method="count of audit records",
        bound=Bound(kind="count", measured=found, limit=0, unit="errors"),
    )


def _bitwise_equal(comparison: ShadowComparison) -> Claim:
    claim = _claim(
        id="shadow.bitwise_equal",
        statement="every served action equals the artifact's own, bit for bit",
        verdict=Verdict.PROVED if comparison.bitwise_equal else Verdict.REFUTED,
        method="recomputed from the audit records",
        bound=Bound(kind="count", measured=comparison.num_unequal, limit=0, unit="actions"),
    )
    if comparison.bitwise_equal is not None:
        return claim
    nothing = {"verdict": Verdict.UNDECIDED, "bound": None, "finding": "no action was served"}
    return claim.model_copy(update=nothing)


def _latencies(config: ShadowConfig, comparison: ShadowComparison) -> list[Claim]:
    limit, named = config.max_latency_seconds, {"p99": "the server", "challenger_p99": "the challenger"}
    found = {name: comparison.latency_seconds[name] for name in named if name in comparison.latency_seconds}
    return [
        _claim(
            id=f"shadow.latency_{name}",
            statement=f"{named[name]} decides within {in_figures(limit)} s in 99 of 100 requests",
            verdict=Verdict.SUPPORTED if measured <= limit else Verdict.REFUTED,
            method="measured by the server",
            bound=Bound(kind="99th percentile", measured=measured, limit=limit, unit="s"),
        )
        for name, measured in found.items()
    ]


def _would_be_violations(config: ShadowConfig, comparison: ShadowComparison, consequences: Consequences) -> Claim:
    """Of the decisions on record. Where no limit is on actions there is nothing to count, and the claim supports
    nothing; where what follows was examined, too few episodes on record to decide it do not block."""
    limit, found = config.max_would_be_violation_rate, comparison.would_be_violations
    statement = f"at most {limit:.2%} of the challenger's actions would break a declared limit on actions"
    claim = _at_most("would_be_violations", statement, found, limit, comparison.num_units)
    if found is None and comparison.num_decisions:
        nothing = "no limit on actions is declared: a decision that is not carried out can break no other"
        return claim.model_copy(update={"mandatory": False, "bound": None, "finding": nothing})
    return claim.model_copy(update={"mandatory": claim.verdict is Verdict.REFUTED or not consequences.examined})


def _not_contrary(comparison: ShadowComparison, agreement: Interval, consequences: Consequences) -> Claim:
    """Refuted by a challenger that decides significantly against the champion: less alike than if both ignored the
    observation. Needs no configured limit; a merely different policy passes. Where what follows was examined that
    decides: a version may do the contrary and be as good. Where chance gives no agreement it cannot be false."""
    chance = comparison.chance_agreement
    statement = "the challenger does not act against the champion: they agree at least as often as by chance"
    return _claim(
        id="shadow.not_contrary",
        statement=statement if chance > 0 else "the two versions agree at least as often as by chance, which is never",
        verdict=Verdict.REFUTED if agreement.high < chance else Verdict.SUPPORTED,
        mandatory=not consequences.examined,
        method=agreement.method,
        bound=Bound(kind="upper bound of agreement", measured=agreement.high, limit=chance),
        finding=f"agreement {agreement.estimate:.1%} [{agreement.low:.1%}, {agreement.high:.1%}], "
        f"by chance {chance:.1%}",
        label=None if chance > 0 else ClaimLabel(kind=LabelKind.CANNOT_BE_FALSE, reason=_NEVER_BY_CHANCE),
    )


def _at_most(
    name: str, statement: str, interval: Interval | None, limit: float, num_units: int, at_least: bool = False
) -> Claim:
    """That what the interval is about is at most the limit, or `at_least`."""
    if interval is None:
        return _claim(
            id=f"shadow.{name}",
            statement=statement,
            verdict=Verdict.UNDECIDED,
            method="count of units",
            bound=Bound(kind="units", measured=num_units, limit=2, unit="units"),
            finding=f"an interval needs at least two episodes or agents; the limit is {in_figures(limit)}",
        )
    low, high, end = interval.low, interval.high, "lower" if at_least else "upper"
    shown = f"{interval.estimate:.6g} [{low:.6g}, {high:.6g}] at {interval.confidence:.0%}"
    return _claim(
        id=f"shadow.{name}",
        statement=statement,
        verdict=verdict_at_most(-high, -low, -limit) if at_least else verdict_at_most(low, high, limit),
        method=interval.method,
        bound=Bound(kind=f"{interval.method}, {end}", measured=low if at_least else high, limit=limit),
        finding=shown,
    )


_at_least = partial(_at_most, at_least=True)
