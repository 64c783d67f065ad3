"""Whole games against opponents of different skill and style."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

from loomrl.gym.domains.game.positions import GamePosition, SpielPosition
from loomrl.gym.domains.game.search import Solver
from loomrl.gym.tasks import Draft, Kind, Rewards, Task, Turn

_TRIES = 200


class Rules(NamedTuple):
    """A game that is played in full: its name in open_spiel, how far is searched, and how many moves a player has."""

    title: str
    spiel: str
    plies: int
    most_moves: int


RULES = {
    "tic_tac_toe": Rules("Tic-tac-toe, x(row,column)", "tic_tac_toe", 9, 5),
    "nim": Rules("Nim; who takes the last wins", "nim(is_misere=false,pile_sizes=1;3;4)", 8, 8),
    "connect_four": Rules("Connect four, x or o and the column", "connect_four", 3, 21),
}


@cache
def solver_of(game: str) -> Solver:
    """The solver of a game, which remembers what it found: of small games everything."""
    assert game in RULES
    return Solver()


class Opponent:
    """Plays the best move, but for a share of random moves, `mistakes`; a `greedy` one looks one move ahead."""

    def __init__(self, game: str, mistakes: float, greedy: bool, seed: int) -> None:
        self._solver, self._plies = solver_of(game), 1 if greedy else RULES[game].plies
        self._mistakes, self._rng = mistakes, np.random.default_rng(seed)

    def reply(self, position: GamePosition) -> str:
        """The opponent's move; it draws as many random numbers whatever it plays."""
        careless, choice = self._rng.random() < self._mistakes, self._rng.random()
        moves = position.moves() if careless else self._solver.best(position, self._plies)
        return moves[int(choice * len(moves))]


class Match:
    """A game being played. An illegal move ends it with nothing more; a lost game earns no more than its good moves.

    `optimal_moves` is the share of moves that were best, paid as they are made; the last move brings what remains of
    it, `winning` where no better result was ever to be had, and `strategic_depth`, the share of those decisions that
    a look one move ahead does not settle.
    """

    def __init__(self, task: Task, num_choices: int) -> None:
        facts = task.facts
        self._game, self._rules, self._num_choices = facts["game"], RULES[facts["game"]], num_choices
        self._solver = solver_of(self._game)
        self._opponent = Opponent(self._game, facts["mistakes"], facts["greedy"], facts["seed"])
        self._position: GamePosition = SpielPosition.start(self._rules.spiel)
        self._player = 0 if facts["begins"] else 1
        self._hope, self._moves, self._good, self._deep, self._deep_good = -1, 0, 0, 0, 0
        if not facts["begins"]:
            self._reply()

    def step(self, message: str) -> Turn:
        """Play the policy's move and the opponent's reply; an illegal move loses the game.

        The turn's text is the next position, or how the game ended.
        """
        move = message.strip(" \r\n")
        if move not in self._position.moves():
            return Turn("That move is not legal. The game is lost.", {}, finished=True)
        paid = self._judge(move)
        self._position = self._position.play(move)
        self._reply()
        result = self._position.result(self._player)
        if result is None:
            return Turn(self.shown(), {"optimal_moves": paid}, finished=False)
        return Turn(self._ending(result), self._final(result, paid), finished=True)

    def best(self) -> str:
        """A best move in the current position, in the game's notation."""
        return self._solver.best(self._position, self._rules.plies)[0]

    def choices(self, rng: np.random.Generator) -> list[str]:
        """The legal moves, or where there are too many a best one among others, sorted."""
        moves = self._position.moves()
        if len(moves) <= self._num_choices:
            return moves
        best = self.best()
        others = [move for move in moves if move != best]
        drawn = [others[index] for index in rng.permutation(len(others))[: self._num_choices - 1]]
        return sorted([best, *drawn])

    def shown(self) -> str:
        """The prompt of the current position: the game's title, the board and the legal moves."""
        legal = ", ".join(self._position.moves())
        return f"{self._rules.title}\n{self._position.shown()}\nYour move, one of: {legal}"

    def close(self) -> None:
        """Does nothing: a match holds no files or processes."""

    def _reply(self) -> None:
        while self._position.result(0) is None and self._position.player != self._player:
            self._position = self._position.play(self._opponent.reply(self._position))

    def _judge(self, move: str) -> float:
        """Count a move; returns what it earns of `optimal_moves` at once."""
        value = self._solver.value(self._position, self._rules.plies)
        self._hope = max(self._hope, (value > 0) - (value < 0))
        good = move in self._solver.best(self._position, self._rules.plies)
        deep = len(self._solver.best(self._position, 1)) != len(self._solver.best(self._position, self._rules.plies))
        self._moves, self._good = self._moves + 1, self._good + good
        self._deep, self._deep_good = self._deep + deep, self._deep_good + (deep and good)
        return good / self._rules.most_moves

    def _final(self, result: int, paid: float) -> Rewards:
        if result < 0:
            return {"optimal_moves": paid}
        rest = self._good / self._moves - (self._good * (1 / self._rules.most_moves)) + paid
        depth = self._deep_good / self._deep if self._deep else 1.0
        return {"winning": float(result >= self._hope), "optimal_moves": rest, "strategic_depth": depth}

    def _ending(self, result: int) -> str:
        return f"{self._position.shown()}\nThe game is over: {('lost', 'drawn', 'won')[result + 1]}."


def match(game: str) -> Callable[[np.random.Generator, int], Draft]:
    """What makes the tasks of a game in `RULES`: matches against an opponent that errs less at a higher level."""

    def make(rng: np.random.Generator, level: int) -> Draft:
        for _ in range(_TRIES):
            facts = {"game": game, "begins": bool(rng.integers(2)), "mistakes": round(0.9 - 0.1 * level, 1)}
            facts |= {"greedy": level < 4 and bool(rng.integers(2)), "seed": int(rng.integers(2**31))}
            task = Task("game", game, level, "", "", (), facts)
            prompt, moves, won = _best_play(task)
            if won:
                return Draft(f"{prompt}\nSend one move at a time.", "\n".join(moves), ("resign",), facts)
        raise AssertionError(f"best play earned all in none of {_TRIES} games of {game}")

    return make


def _best_play(task: Task) -> tuple[str, list[str], bool]:
    """The first position, the moves of best play, and whether they earn everything."""
    playing = Match(task, 9)
    prompt, moves, rewards = playing.shown(), [], dict.fromkeys(("winning", "optimal_moves", "strategic_depth"), 0.0)
    while True:
        moves.append(playing.best())
        turn = playing.step(moves[-1])
        rewards = {name: value + turn.rewards.get(name, 0.0) for name, value in rewards.items()}
        if turn.finished:
            return prompt, moves, all(value > 0.999 for value in rewards.values())


KINDS = {
    "tic_tac_toe_match": Kind(1, match("tic_tac_toe")),
    "nim_match": Kind(3, match("nim")),
    "connect_four_match": Kind(5, match("connect_four")),
}
