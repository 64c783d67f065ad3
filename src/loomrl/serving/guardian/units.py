"""Evidence that a mean over agents has passed its limit, whatever happens within an agent and whenever one looks.

The unit is the agent, for agents are what differs, breaks and is assigned. Two tests, each an e-process: its
expectation never passes 1 while what it tests is true, so it ever reaches 1 / alpha with a probability of at most alpha
(Ville's inequality; Ramdas, Grünwald, Vovk and Shafer, Game-theoretic statistics and safe anytime-valid inference,
2023).

`over_agents`: agents are independent, and the mean of an agent's first m values, in [0, 1], is at most `limit` in
expectation. An agent is one bet, at several stakes and for several m at once (Waudby-Smith and Ramdas, Estimating means
of bounded random variables by betting, JRSS B 86, 2024, section 4). A value that has not come counts as 0, so that an
agent's bet only grows until it is complete: at every time the product over agents lies below the product of complete
bets, which is an e-process. Nothing is assumed of how the values of one agent depend on each other, and no agent can
show more than 1 / `limit`.

`within_agents`: for a few agents. Given what came before, the mean of each block of an agent's values is at most
`limit` in expectation. Blocks are what counts, bets may begin at every block (Shin, Ramdas and Rinaldo, E-detectors,
2024), and evidence grows with time.

Both leave out the agents that say most (`num_left_out`). The product over the others is the least over all ways to
leave out so many: it is an e-process also if any so many agents are broken.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
NUM_SCALES = 5
FEW = 10  # agents, from which on they are the only units
_STAKES: Floats = np.array([0.9, 0.3, 0.1, 0.03])  # how much of a fortune is staked on each bet
_LOST: Floats = np.log1p(-_STAKES)  # logarithm of what is left with a value of 0
_GROWTH = 16  # each scale of an agent's values is so many times the one before
_NUM_BLOCK_SCALES = 2
_MOST = 230.0  # logarithm of evidence beyond any level; infinity could not be written
_TOLERATED_SHARE = 0.05


@lru_cache(maxsize=64)
def scales(block: int) -> tuple[int, ...]:
    """How many of its first values an agent is judged by, at each of `NUM_SCALES` scales: one value, one block of
    `block` values, and 16, 256, 4,096 blocks.
    """
    return (1, *(block * _GROWTH**power for power in range(NUM_SCALES - 1)))


def num_left_out(num_agents: int, is_alone: bool) -> int:
    """How many agents may break any limit before the version is what breaks it: one of up to four, two of up to 40,
    then 5 %; none where it is known that there is but one."""
    if num_agents <= 1:
        return 0 if is_alone else 1
    return max(1, min((num_agents - 1) // 2, max(2, math.ceil(_TOLERATED_SHARE * num_agents))))


def over_agents(means: Floats, num_clean: Floats, limit: float, left_out: int) -> float:
    """The evidence, an e-value, that the mean over agents is above `limit`; 1 says nothing.

    `means` (N, M): of the first values of agents that have shown something, at M scales; NaN where an agent takes no
    part. `num_clean` (M,): the agents besides that take part and whose values were all 0. `left_out`: how many agents
    that say most are left out.
    """
    bets = np.log1p(_STAKES * (means[:, :, None] / limit - 1.0))  # (N, M, S)
    bets[np.isnan(bets)] = 0.0
    return _product(bets, num_clean[:, None] * _LOST, left_out)


def within_agents(fortunes: Sequence[Floats], left_out: int) -> float:
    """The evidence, an e-value, of few agents' fortunes, (cells,) each as `AgentBlocks.fortunes` gives them.

    The `left_out` agents that say most are left out. Without agents it is 1, which says nothing.
    """
    return _product(np.log(np.array(fortunes)), np.zeros(1), left_out) if fortunes else 1.0


def _product(logs: Floats, clean: Floats, left_out: int) -> float:
    """Mean over all kinds of bets of the product over agents, (N, ...), but for those that won most."""
    total = logs.sum(axis=0) + clean
    if left_out and len(logs):
        count = min(left_out, len(logs))
        won = np.partition(logs, len(logs) - count, axis=0)[len(logs) - count :]
        total = total - np.maximum(won, 0.0).sum(axis=0)
    return float(np.exp(np.minimum(total, _MOST)).mean())


@dataclass(slots=True)
class AgentBlocks:
    """One agent's fortunes, block by block: those that began at each block together, and the block it is in."""

    number: int = 0  # of the block `sums` are of, from 1 on
    sums: list[float] = field(default_factory=lambda: [0.0] * _NUM_BLOCK_SCALES)
    wealth: list[float] = field(default_factory=lambda: [0.0] * (_NUM_BLOCK_SCALES * len(_STAKES)))  # before that block

    def add(self, place: int, value: float, block: int, limit: float) -> None:
        """Add a value that is not 0, at its place among all of the agent, from 1 on, in blocks of `block` values.

        One that comes after its block was left counts as 0. `limit` is what the mean of a block may be.
        """
        number = (place - 1) // block + 1
        if number < self.number:
            return  # it came late: its block is settled, as if it were 0
        if number > self.number:
            self.wealth = self._paid(number - 1, block, limit).ravel().tolist()
            self.number, self.sums = number, [0.0] * _NUM_BLOCK_SCALES
        self.sums[1] += value
        if (place - 1) % block == 0:
            self.sums[0] += value

    def fortunes(self, count: int, block: int, limit: float, takes_first: bool) -> Floats:
        """What the agent's bets have become after `count` values, (cells,); bets that have not begun are part of them.

        `block` and `limit` are those of `add`. `takes_first`: whether the agent takes part in the bets on the first
        value of each block; else those stay 1.
        """
        number = -(-count // block)
        found = self._paid(number, block, limit) + 1.0 / (number + 1.0)
        if not takes_first:
            found[0] = 1.0
        return found.ravel()

    def _paid(self, number: int, block: int, limit: float) -> Floats:
        """The fortunes, (scales, stakes), after the block of this number."""
        wealth = np.array(self.wealth).reshape(_NUM_BLOCK_SCALES, len(_STAKES))
        if self.number == 0:
            return _idle(number) + 0.0 * wealth
        means = np.array([self.sums[0], self.sums[1] / block])
        gained = (wealth + _weight(self.number)) * (1.0 + _STAKES * (means[:, None] / limit - 1.0))
        return gained * (1.0 - _STAKES) ** (number - self.number) + _idle_between(self.number, number)


def _weight(number: int) -> float:
    """What begins to be staked at a block; all of them are 1."""
    return 1.0 / (number * (number + 1.0))


@lru_cache(maxsize=4096)
def _idle(number: int) -> Floats:
    """What is left of the bets begun until now, (stakes,), where every block was 0."""
    return _idle_between(0, number)


def _idle_between(first: int, last: int) -> Floats:
    """The same of those begun after one block and until another."""
    begun = np.arange(max(first, last - 4096) + 1, last + 1, dtype=np.float64)
    return np.asarray(((1.0 - _STAKES) ** (last - begun[:, None] + 1.0) / (begun * (begun + 1.0))[:, None]).sum(axis=0))
