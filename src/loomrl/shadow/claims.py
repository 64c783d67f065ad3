"""What shadow claims about a challenger, each held against the config's limit."""

from loomrl.shadow.comparison import ShadowComparison
from loomrl.shadow.config import ShadowConfig
from loomrl.shadow.following import claims_of
from loomrl.types import Bound, Claim, Consequences, Interval, Verdict

_STEPS = "steps of one unit may depend on each other, units do not: agents where several were watched, else episodes"
_GOOD = (Verdict.PROVED, Verdict.SUPPORTED)


def judge(config: ShadowConfig, comparison: ShadowComparison, consequences: Consequences) -> list[Claim]:
    """Every claim the config asks for; those that need a champion only where there is one."""
    claims = [_enough(config, comparison), _no_errors(comparison), *_latencies(config, comparison)]
    claims.append(_would_be_violations(config, comparison, consequences))
    if comparison.bitwise_equal is not None:
        claims.append(_bitwise_equal(comparison))
    if comparison.agreement is not None:
        claims.append(_not_contrary(comparison, comparison.agreement))
    if comparison.has_champion:
        claims += _configured(config, comparison)
    return claims + claims_of(consequences, config)


def passes(claims: list[Claim]) -> bool:
    """Every mandatory claim is met; an undecided one blocks."""
    return bool(claims) and all(claim.verdict in _GOOD for claim in claims if claim.mandatory)


def _configured(config: ShadowConfig, comparison: ShadowComparison) -> list[Claim]:
    claims = []
    if config.min_agreement is not None:
        statement = f"the challenger agrees with the champion in at least {config.min_agreement:.1%} of the decisions"
        claims.append(_at_least("agreement", statement, comparison.agreement, config.min_agreement, comparison))
    if config.max_action_distance is not None:
        statement = f"the challenger's actions lie within {config.max_action_distance:g} of the champion's on average"
        claims.append(
            _at_most("action_distance", statement, comparison.action_distance, config.max_action_distance, comparison)
        )
    if config.max_value_drop is not None:
        statement = f"the challenger expects at most {config.max_value_drop:g} less than the champion"
        claims.append(
            _at_least("value_drop", statement, comparison.value_difference, -config.max_value_drop, comparison)
        )
    return claims


def _enough(config: ShadowConfig, comparison: ShadowComparison) -> Claim:
    found, wanted = comparison.num_decisions, config.min_decisions
    return _claim(
        "min_decisions",
        f"at least {wanted} decisions were watched",
        Verdict.PROVED if found >= wanted else Verdict.UNDECIDED,
        "count of audit records",
        Bound(kind="count", measured=found, limit=wanted, unit="decisions"),
        comparison,
        comparison.shortfall if found < wanted else "",
    )


def _no_errors(comparison: ShadowComparison) -> Claim:
    found = comparison.num_errors
    verdict = Verdict.PROVED if found == 0 else Verdict.REFUTED
    bound = Bound(kind="count", measured=found, limit=0, unit="errors")
    statement = "the challenger answered every mirrored request"
    return _claim("challenger_errors", statement, verdict, "count of audit records", bound, comparison)


def _bitwise_equal(comparison: ShadowComparison) -> Claim:
    verdict = Verdict.PROVED if comparison.bitwise_equal else Verdict.REFUTED
    bound = Bound(kind="count", measured=comparison.num_unequal, limit=0, unit="actions")
    statement = "every served action equals the artifact's own, bit for bit"
    return _claim("bitwise_equal", statement, verdict, "recomputed from the audit records", bound, comparison)


def _latencies(config: ShadowConfig, comparison: ShadowComparison) -> list[Claim]:
    claims = []
    for name, who in (("p99", "the server"), ("challenger_p99", "the challenger")):
        measured = comparison.latency_seconds.get(name)
        if measured is None:
            continue
        verdict = Verdict.SUPPORTED if measured <= config.max_latency_seconds else Verdict.REFUTED
        bound = Bound(kind="99th percentile", measured=measured, limit=config.max_latency_seconds, unit="s")
        statement = f"{who} decides within {config.max_latency_seconds:g} s in 99 of 100 requests"
        claims.append(_claim(f"latency_{name}", statement, verdict, "measured by the server", bound, comparison))
    return claims


def _would_be_violations(config: ShadowConfig, comparison: ShadowComparison, consequences: Consequences) -> Claim:
    """Of the decisions on record. Where no limit is on actions there is nothing to count, and the claim supports
    nothing; where what follows was examined, too few episodes on record to decide it do not block."""
    limit, found = config.max_would_be_violation_rate, comparison.would_be_violations
    statement = f"at most {limit:.2%} of the challenger's actions would break a declared limit on actions"
    claim = _at_most("would_be_violations", statement, found, limit, comparison)
    if found is None and comparison.num_decisions:
        nothing = "no limit on actions is declared: a decision that is not carried out can break no other"
        return claim.model_copy(update={"mandatory": False, "bound": None, "finding": nothing})
    return claim.model_copy(update={"mandatory": claim.verdict is Verdict.REFUTED or not consequences.examined})


def _not_contrary(comparison: ShadowComparison, agreement: Interval) -> Claim:
    """Refuted by a challenger that decides significantly against the champion: less alike than if both ignored the
    observation. Needs no configured limit; a merely different policy passes."""
    chance = comparison.chance_agreement
    contrary = agreement.high < chance
    return _claim(
        "not_contrary",
        "the challenger does not act against the champion: they agree at least as often as by chance",
        Verdict.REFUTED if contrary else Verdict.SUPPORTED,
        agreement.method,
        Bound(kind="upper bound of agreement", measured=agreement.high, limit=chance),
        comparison,
        f"agreement {agreement.estimate:.1%} [{agreement.low:.1%}, {agreement.high:.1%}], by chance {chance:.1%}",
    )


def _at_most(name: str, statement: str, interval: Interval | None, limit: float, comparison: ShadowComparison) -> Claim:
    if interval is None:
        return _too_few(name, statement, limit, comparison)
    verdict = (
        Verdict.SUPPORTED if interval.high <= limit else Verdict.REFUTED if interval.low > limit else Verdict.UNDECIDED
    )
    bound = Bound(kind=f"{interval.method}, upper", measured=interval.high, limit=limit)
    return _claim(name, statement, verdict, interval.method, bound, comparison, _shown(interval))


def _at_least(
    name: str, statement: str, interval: Interval | None, limit: float, comparison: ShadowComparison
) -> Claim:
    if interval is None:
        return _too_few(name, statement, limit, comparison)
    verdict = (
        Verdict.SUPPORTED if interval.low >= limit else Verdict.REFUTED if interval.high < limit else Verdict.UNDECIDED
    )
    bound = Bound(kind=f"{interval.method}, lower", measured=interval.low, limit=limit)
    return _claim(name, statement, verdict, interval.method, bound, comparison, _shown(interval))


def _too_few(name: str, statement: str, limit: float, comparison: ShadowComparison) -> Claim:
    bound = Bound(kind="units", measured=comparison.num_units, limit=2, unit="units")
    finding = f"an interval needs at least two episodes or agents; the limit is {limit:g}"
    return _claim(name, statement, Verdict.UNDECIDED, "count of units", bound, comparison, finding)


def _claim(
    name: str,
    statement: str,
    verdict: Verdict,
    method: str,
    bound: Bound,
    comparison: ShadowComparison,
    finding: str = "",
) -> Claim:
    return Claim(
        id=f"shadow.{name}",
        stage="shadow",
        statement=statement,
        mandatory=True,
        method=method,
        verdict=verdict,
        assumptions=[_STEPS],
        confidence=comparison.confidence,
        bound=bound,
        num_samples=comparison.num_decisions,
        finding=finding,
    )


def _shown(interval: Interval) -> str:
    return f"{interval.estimate:.6g} [{interval.low:.6g}, {interval.high:.6g}] at {interval.confidence:.0%}"
