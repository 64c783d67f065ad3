"""Games: puzzles and whole games of chess, tic-tac-toe, connect four and others, by python-chess and open_spiel.

Rewards: `winning`, `optimal_moves`, `strategic_depth`. A puzzle's answer is one move; of a whole game each message is
one, and the environment answers with the opponent's.
"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from loomrl.gym.domains.game import matches, puzzles
from loomrl.gym.environment import DomainEnvironment
from loomrl.gym.tasks import Domain, Kind, Rewards, SingleAnswer, Task, TaskEpisode


class Game(Domain):
    """Tasks about games of two players: puzzles with one best move, and matches against an opponent."""

    name = "game"
    weights: ClassVar[Mapping[str, float]] = {"winning": 0.6, "optimal_moves": 0.2, "strategic_depth": 0.2}
    kinds: ClassVar[Mapping[str, Kind]] = {**puzzles.KINDS, **matches.KINDS}
    num_choices = 9
    answer_bytes = 32
    choice_bytes = 24

    def verify(self, task: Task, answer: str) -> Rewards:
        """The rewards of a puzzle's answer: all for a move that wins as fast as any, else none. A match is played.

        A puzzle has no win that is slower or that one move ahead shows.
        """
        if "winning" not in task.facts:
            return self.score(task, answer).rewards
        return self.everything() if answer.strip(" \r\n") in task.facts["winning"] else self.nothing()

    def begin(self, task: Task) -> TaskEpisode:
        """An episode of the task: one answer for a puzzle, a whole game for a match."""
        return SingleAnswer(self, task) if "winning" in task.facts else matches.Match(task, self.num_choices)

    def messages(self, task: Task, answer: str) -> list[str]:
        """The moves of a whole game, one from each line of the answer; of a puzzle the answer itself."""
        return [answer] if "winning" in task.facts else answer.strip().split("\n")

    def choices(self, task: Task, rng: np.random.Generator) -> list[str]:
        """The right move and losing ones, sorted: an order that is the same from position to position."""
        return sorted(super().choices(task, rng))


DOMAIN = Game()


class GameEnvironment(DomainEnvironment):
    """The environment `loomrl/Game-v0`: episodes of the game domain."""

    domain = DOMAIN


Environment = GameEnvironment  # as all plug-ins of this kind name it
