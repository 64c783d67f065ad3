"""The error that a gate may make, spent over the attempts to pass it.

Seeds of the safety episodes are fixed, so a policy may be trained again until one happens to pass. The k-th attempt is
therefore held to alpha / (k (k + 1)); these levels sum to alpha over all attempts there can be, so that the chance that
any policy passes whose claim is false is at most alpha, however many are tried and whatever is learnt from others.
"""

import math

from loomrl.types import Claim, SafetyCase, Verdict


def level(alpha: float, number: int) -> float:
    """The error that attempt `number`, from 1 on, may make: the shares 1/2, 1/6, 1/12, ... of alpha."""
    return alpha / (number * (number + 1))


def short_of(case: SafetyCase, number: int) -> list[str]:
    """Mandatory claims that the case calls supported and that fall short of an attempt's level, each in a sentence.

    The list is empty where all reach it. A claim without a p-value never falls short.
    """
    held = [claim for claim in case.claims if claim.mandatory and claim.verdict is Verdict.SUPPORTED]
    return [_explained(claim, number) for claim in held if _is_short(claim, number)]


def _alpha(claim: Claim) -> float:
    return 0.0 if claim.confidence is None else 1.0 - claim.confidence


def _is_short(claim: Claim, number: int) -> bool:
    return claim.p_value is not None and claim.p_value > level(_alpha(claim), number)


def _explained(claim: Claim, number: int) -> str:
    """How far it is from the level, and how many samples a next attempt takes: p-values fall exponentially in them."""
    assert claim.p_value is not None
    found = f"{claim.id} may be wrong with probability {claim.p_value:.3g}"
    if claim.num_samples is None or not 0.0 < claim.p_value < 1.0:
        return found
    following = level(_alpha(claim), number + 1)
    needed = math.ceil(claim.num_samples * math.log(following) / math.log(claim.p_value))
    return (
        f"{found}; attempt {number + 1} is held to {following:.3g}, which takes about {needed} samples "
        f"like its {claim.num_samples}"
    )
