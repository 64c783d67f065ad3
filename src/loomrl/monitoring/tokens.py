"""Whose word evidence is: an agent's, where its token is bound to it; else its token's, however many agents that names.

Whoever holds a token that may speak for any agent can be as many agents as it likes. So what agents of one such token
show takes no version out while others, who are asked as well, do not bear it out (`VersionMonitors.look`); and what is
said under such a token in the name of an agent that another speaks for counts for nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loomrl.schema import Document

NO_TOKEN = ""  # of agents whose tokens are bound to them, and where none is needed
ENOUGH_ASKED = 100  # requests in two windows: those who are asked so much would have seen a fault, too
BORNE_OUT = 10.0  # e-value of what others show: met by a version that keeps its limits one time in ten


@dataclass
class Asked:
    """How much is asked under each token, in the window before and in the newest."""

    window: str = ""
    counts: dict[str, list[int]] = field(default_factory=dict)

    def saw(self, window: str, requests: Mapping[str, int]) -> None:
        """So many requests under each token."""
        if window > self.window:
            self.window = window
            self.counts = {token: [now, 0] for token, (_, now) in self.counts.items() if now}
        for token, count in requests.items():
            self.counts.setdefault(token, [0, 0])[1] += count

    def beside(self, token: str) -> int:
        """How many requests others have made."""
        return sum(sum(counts) for one, counts in self.counts.items() if one != token)


class Suspicion(Document):
    """What agents of one token show would take a version out; nobody else bears it out."""

    version: str
    monitor: str
    token: str
    num_agents: int  # that it named
    e_value: float  # of what all show,
    e_value_beside: float  # and of what all others show
    num_decisions: int  # the version's own, until then

    @property
    def source(self) -> tuple[str, str, str]:
        """What tells it from others."""
        return self.version, self.monitor, self.token

    @property
    def reason(self) -> str:
        """For a person."""
        return (
            f"{self.monitor}: what {self.num_agents} agents of the token {self.token!r} show would take version "
            f"{self.version} out (e-value {self.e_value:.3g}); what all others show does not bear it out "
            f"({self.e_value_beside:.3g}): look at who holds that token, and at the version"
        )
