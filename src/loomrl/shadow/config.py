"""How a challenger is watched before it may act."""

from itertools import accumulate
from typing import Literal

from pydantic import Field

from loomrl.environment.seeds import CONSEQUENCES_SEEDS, SHADOW_SEEDS
from loomrl.system.schema import Section

MOST_TIMES = 20  # times `num_episodes` that traffic plays at most, to reach `min_decisions`

BURSTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # steps for which an action is held to disturb an episode
NOISES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)  # standard deviations of what the champion observes, tried in this order
NOISE_MARGIN = 2.0  # of the most noise that the champion withstands the challenger must withstand so much less
PILOT_EPISODES = 24  # with a burst of each length, and noise of each size: which of them the champion withstands


class ConsequencesConfig(Section):
    """Whether and how far it is followed what comes of the decisions in which challenger and champion differ.

    Episodes are played in the snapshot of the environment, apart from the server. `examine: false` follows nothing,
    `mandatory: false` lets a challenger be promoted whatever was found; the report and the promotion say so.

    `num_episodes` are played by the champion, `num_disturbed` after other actions, `num_noisy` under noise of the
    sensors that the champion withstands, `max_pairs` at most on the same seeds where fewer leave undecided which earns
    more. `max_return_drop` is a share of what the champion earns above random actions, the failures are shares of their
    episodes (after a disturbance, beyond the share in which the champion fails and the challenger does not), and
    `max_travel_ratio` is a multiple of how far the champion's continuous actions move in a step: the nearer to 1, the
    more episodes it takes to show that an equal keeps it, and the larger, the more to refute it.
    """

    examine: bool = True
    mandatory: bool = True
    first_seed: int = Field(default=CONSEQUENCES_SEEDS.start, ge=0)
    num_episodes: int = Field(default=512, ge=2)  # a limit of 1 % at 95 % needs 299 without a violation, 473 with one
    num_disturbed: int = Field(default=480, ge=0)  # episodes in which other actions lead to states seldom seen
    num_noisy: int = Field(default=240, ge=0)  # episodes under noise of the sensors that the champion withstands
    max_pairs: int = Field(default=4_096, ge=2)  # whole episodes on the same seeds, where fewer leave it undecided
    num_envs: int = Field(default=192, ge=1)  # environments that are stepped at once
    max_return_drop: float = Field(default=0.1, gt=0, le=1)  # share of what the champion earns above random actions
    max_failures_after_disturbance: float = Field(default=0.05, gt=0, lt=1)
    max_failures_under_noise: float = Field(default=0.05, gt=0, lt=1)
    max_travel_ratio: float = Field(default=2.0, ge=1)  # of how far continuous actions move from step to step

    @property
    def seeds(self) -> range:
        """Reset seeds that may be used, empty where nothing is examined; those of the simulated traffic come before
        them."""
        count = sum(len(part) for part in self.parts) if self.examine else 0
        return range(self.first_seed, self.first_seed + count)

    @property
    def parts(self) -> tuple[range, range, range, range, range, range]:
        """Six ranges of places in the list of seeds, from 0 on, one after the other.

        They are for the champion's episodes, for disturbed ones and for those that try how much it withstands, for
        noisy ones and for those that try it, and for further pairs of whole episodes.
        """
        counts = (
            *(self.num_episodes, self.num_disturbed, PILOT_EPISODES * len(BURSTS)),
            *(self.num_noisy, PILOT_EPISODES * len(NOISES), max(0, self.max_pairs - self.num_episodes)),
        )
        ends = list(accumulate(counts))
        one, two, three, four, five, six = (range(end - count, end) for end, count in zip(ends, counts, strict=True))
        return one, two, three, four, five, six


class ShadowConfig(Section):
    """Settings of the shadow stage. `traffic: episodes` drives a server with episodes of the environment; `live` waits
    for real requests.

    `server` is the URL of a running policy server; None starts one for the stage. Simulated traffic plays
    `num_episodes` at least, from reset seed `first_seed` on; live traffic is waited for `wait_seconds`, until there are
    `min_decisions`. Rate and agreement are shares of the decisions, `max_value_drop` is of the mean value,
    `max_action_distance` is a mean in halves of the action range, and the latency is the p99 of the server's own time.
    A limit that is None claims nothing.
    """

    traffic: Literal["episodes", "live"] = "episodes"
    server: str | None = None  # URL of a running policy server; None starts one for the stage
    num_episodes: int = Field(default=20, ge=1)
    first_seed: int = Field(default=SHADOW_SEEDS.start, ge=0)
    min_decisions: int = Field(default=1_000, ge=1)
    wait_seconds: float = Field(default=3_600.0, gt=0)  # live: how long to wait for min_decisions
    max_decisions_per_second_per_agent: float = Field(default=1_000.0, gt=0)
    max_would_be_violation_rate: float = Field(default=0.01, ge=0, le=1)
    max_value_drop: float | None = None
    min_agreement: float | None = Field(default=None, ge=0, le=1)
    max_action_distance: float | None = Field(default=None, gt=0)
    max_latency_seconds: float = Field(default=0.1, gt=0)  # p99 of the server's own time per decision
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    consequences: ConsequencesConfig = Field(default_factory=ConsequencesConfig)

    @property
    def seeds(self) -> range:
        """Reset seeds simulated traffic may use: it plays on until `min_decisions` are reached."""
        return range(self.first_seed, self.first_seed + MOST_TIMES * self.num_episodes)
