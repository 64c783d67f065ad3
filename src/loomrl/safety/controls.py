"""Which claims are evidence for which control of a standard.

A control is listed only where a claim of this gate is evidence for a part of it: none is fulfilled by a safety case
alone. Keys are `standard: clause: subject`; values are the first parts of claim ids.
"""

from collections.abc import Sequence

from loomrl.types import Claim, Verdict

CONTROLS: dict[str, tuple[str, ...]] = {
    # ISO/IEC 27001:2022, annex A
    "ISO/IEC 27001:2022 A.8.9 configuration management": ("provenance",),
    "ISO/IEC 27001:2022 A.8.26 application security requirements": ("action_bounds", "finiteness"),
    "ISO/IEC 27001:2022 A.8.29 security testing in development and acceptance": (
        "statistical_limits",
        "certified",
        "monotone",
        "stability",
        "model_checking",
        "action_bounds",
        "finiteness",
        "robustness",
        "disturbed_return",
        "falsification",
    ),
    "ISO/IEC 27001:2022 A.8.16 monitoring activities": ("out_of_distribution",),
    "ISO/IEC 27001:2022 A.8.32 change management": ("provenance", "statistical_limits", "minimum_return"),
    # IEEE 7000-2021: ethical value requirements are verified against declared limits, with risks measured
    "IEEE 7000-2021 ethical risk-based design process: verified limits": (
        "statistical_limits",
        "certified",
        "model_checking",
    ),
    "IEEE 7000-2021 ethical requirements definition process: fairness": ("reward_bias",),
    "IEEE 7000-2021 ethical requirements definition process: the reward is what is wanted": ("reward_hacking",),
    # The five rules of operation
    "Rule 1 production policies are never overwritten: the case names the policy by digest": ("provenance.policy",),
    "Rule 2 environments are versioned: the case names the snapshot by digest": ("provenance.snapshot",),
}


def map_controls(claims: Sequence[Claim]) -> dict[str, list[str]]:
    """Control -> ids of the claims that are evidence for it: proved or supported ones only."""
    good = [claim.id for claim in claims if claim.verdict in (Verdict.PROVED, Verdict.SUPPORTED)]
    mapped = {control: [name for name in good if _matches(name, prefixes)] for control, prefixes in CONTROLS.items()}
    return {control: names for control, names in mapped.items() if names}


def _matches(name: str, prefixes: Sequence[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
