"""Whether a case still stands where it is used: at export and at promotion."""

from collections.abc import Mapping
from datetime import date

from loomrl.safety.check import HOLDS
from loomrl.types import Claim, SafetyCase, Verdict


def lapsed(case: SafetyCase, today: date) -> list[Claim]:
    """Mandatory claims that rest on a waiver whose last day is before `today`, or on none; empty where there are
    none."""
    waived = [claim for claim in case.claims if claim.mandatory and claim.verdict is Verdict.WAIVED]
    return [claim for claim in waived if claim.waiver is None or date.fromisoformat(claim.waiver.expires) < today]


def explain_lapsed(claim: Claim) -> str:
    """One sentence on why a claim that has lapsed no longer counts."""
    if claim.waiver is None:
        return f"{claim.id} is waived by nobody"
    return f"the waiver of {claim.id} by {claim.waiver.person} expired on {claim.waiver.expires}; renew it or meet it"


def failed_on_graph(case: SafetyCase, rechecked: Mapping[str, Verdict]) -> list[str]:
    """The ids of local claims that held for the network, or that it never made, and do not hold for the exported graph.

    `rechecked` are the verdicts on the graph by claim id. A claim that the network did not meet was waived, or is not
    mandatory: it is left out.
    """
    unmet = {claim.id for claim in case.claims if claim.verdict not in HOLDS}
    return [name for name, verdict in rechecked.items() if verdict not in HOLDS and name not in unmet]
