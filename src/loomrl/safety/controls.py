"""Which claims are evidence for which control of a standard: `controls.yaml`, and a case held against it."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from loomrl.safety.check import HOLDS
from loomrl.system.schema import Section
from loomrl.types import Claim, LabelKind

CONTROLS = Path(__file__).with_name("controls.yaml")


class ComplianceControl(Section):
    """A control of a standard, named by standard, clause and subject, and what shows that a part of it is met.

    `claims` are the first parts of ids of claims that do, `operation` the command that does where only a running server
    can.
    """

    name: str  # standard, clause and subject
    claims: tuple[str, ...] = ()  # first parts of claim ids
    operation: str = ""  # the command that shows it where only a running server can


@cache
def known_controls() -> tuple[ComplianceControl, ...]:
    """All controls of `controls.yaml`, in the order of the file."""
    from ruamel.yaml import YAML

    return tuple(TypeAdapter(list[ComplianceControl]).validate_python(YAML(typ="safe").load(CONTROLS)))


def map_controls(claims: Sequence[Claim]) -> dict[str, list[str]]:
    """Control -> ids of the claims that are evidence for it: proved or supported ones only, and of those with a label
    only records. Controls without any are left out."""
    good = [claim.id for claim in claims if claim.verdict in HOLDS and _says_something(claim)]
    mapped = {one.name: [name for name in good if _matches(name, one.claims)] for one in known_controls()}
    return {control: names for control, names in mapped.items() if names}


def _says_something(claim: Claim) -> bool:
    return claim.label is None or claim.label.kind is LabelKind.RECORD


def _matches(name: str, prefixes: Sequence[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)
