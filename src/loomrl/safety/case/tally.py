"""How many claims of a case hold: the one count that everything that says "n of n" prints.

Counted is a claim that can be false and says something of its own. One with a label (it repeats another, cannot be
false or was never seen false, or compares records of the same run) is shown, and blocks like any other where it is
mandatory and not met. One that does not hold counts whatever its label says, unless it repeats another one, which comes
out alike.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loomrl.safety.check import HOLDS
from loomrl.types import Claim, LabelKind


@dataclass(frozen=True)
class ClaimTally:
    """How many of the claims that count hold, and how many do not count, for what reason.

    `counted` are those without a label, and those that do not hold and repeat no other one; `holding` are those of them
    that are proved or supported.
    """

    holding: int
    counted: int
    not_counted: dict[LabelKind, int]  # claims with a label of each kind, 0 included

    def __str__(self) -> str:
        """Such as "4 of 4 claims hold (3 repeat another, 1 cannot be false, 4 compare records)"."""
        told = [_TOLD[kind](number) for kind, number in self.not_counted.items() if number]
        left_out = f" ({', '.join(told)})" if told else ""
        return f"{self.holding} of {self.counted} claims hold{left_out}"


_TOLD = {
    LabelKind.REPEATS: lambda number: f"{number} {'repeats' if number == 1 else 'repeat'} another",
    LabelKind.CANNOT_BE_FALSE: lambda number: f"{number} cannot be false",
    LabelKind.NEVER_BROKEN: lambda number: f"{number} {'was' if number == 1 else 'were'} never seen false",
    LabelKind.RECORD: lambda number: f"{number} {'compares' if number == 1 else 'compare'} records",
}


def tally(claims: Sequence[Claim]) -> ClaimTally:
    """Count the claims that hold, those that count, and the others by kind of label."""
    left_out = Counter(claim.label.kind for claim in claims if claim.label is not None and not counts(claim))
    counted = [claim for claim in claims if counts(claim)]
    holding = sum(claim.verdict in HOLDS for claim in counted)
    return ClaimTally(holding, len(counted), {kind: left_out[kind] for kind in LabelKind})


def counts(claim: Claim) -> bool:
    """Whether a claim is among those of which it is said how many hold."""
    if claim.label is None:
        return True
    return claim.verdict not in HOLDS and claim.label.kind is not LabelKind.REPEATS
