"""Puzzles: positions in which some moves, and not all, win by force within a number of plies."""

import functools
import operator
from collections.abc import Callable

import chess
import numpy as np

from loomrl.gym.domains.game.positions import ChessPosition, GamePosition, SpielPosition
from loomrl.gym.domains.game.search import Solver
from loomrl.gym.tasks import Draft, Kind

_TRIES = 5_000
_PIECES = (("Q",), ("R", "R"), ("Q", "R"), ("Q", "N"), ("Q", "B", "p"), ("R", "R", "p", "n"))


def spiel_puzzle(game: str, title: str, last_plies: int) -> Callable[[np.random.Generator, int], Draft]:
    """What makes the tasks of a game of open_spiel: puzzles that look further at a higher level, up to `last_plies`."""

    def make(rng: np.random.Generator, level: int) -> Draft:
        plies = min(1 + 2 * (level // 3), last_plies)
        return _draft(title, *_late_position(game, rng, plies), plies)

    return make


def chess_puzzle(rng: np.random.Generator, level: int) -> Draft:
    """A task: mate in one, from level 5 on in two, with the more pieces the higher the level."""
    plies = 1 if level < 5 else 3
    for _ in range(_TRIES):
        position = _placed(rng, _PIECES[int(rng.integers(1 + level // 2)) % len(_PIECES)])
        if position is not None and (winning := _winning(position, plies)):
            return _draft("Chess", position, winning, plies)
    raise AssertionError(f"no mate within {plies} plies in {_TRIES} positions")


def row_puzzle(rng: np.random.Generator, level: int) -> Draft:
    """A task: a tic-tac-toe puzzle without a word, `.x./x.x/.oo o=`, so that the smallest policies can learn it."""
    position, winning = _late_position("tic_tac_toe", rng, 1 if level < 3 else 3)
    losing = [move for move in position.moves() if move not in winning]
    prompt = f"{'/'.join(position.shown().split())} {losing[0][0]}="
    return Draft(prompt, min(winning), losing, {"winning": sorted(winning)})


def nim_puzzle(rng: np.random.Generator, level: int) -> Draft:
    """A task: win from two piles of nim, three from level 4 on. A move is the pile's number and what is taken.

    Short, so that the smallest policies can learn it. Who leaves piles whose exclusive or is 0 wins (Bouton 1901).
    """
    piles = rng.integers(1, 4 + level, size=2 if level < 4 else 3).tolist()
    if _nim_sum(piles) == 0:
        piles[0] += 1
    moves = [(pile, taken) for pile, size in enumerate(piles) for taken in range(1, size + 1)]
    winning = [f"{pile + 1}-{taken}" for pile, taken in moves if _nim_sum(piles) ^ piles[pile] == piles[pile] - taken]
    losing = [move for move in (f"{pile + 1}-{taken}" for pile, taken in moves) if move not in winning]
    offered = [losing[index] for index in rng.permutation(len(losing))[:8]] or ["0-0"]
    return Draft(f"nim {' '.join(map(str, piles))}: pile-take=", winning[0], offered, {"winning": winning})


def _nim_sum(piles: list[int]) -> int:
    return functools.reduce(operator.xor, piles)


def _late_position(game: str, rng: np.random.Generator, plies: int) -> tuple[GamePosition, dict[str, int]]:
    """The first position that makes a puzzle in random games of open_spiel, and its winning moves."""
    for _ in range(_TRIES):
        position: GamePosition = SpielPosition.start(game)
        while moves := position.moves():
            if winning := _winning(position, plies):
                return position, winning
            position = position.play(moves[int(rng.integers(len(moves)))])
    raise AssertionError(f"no puzzle of {plies} plies in {_TRIES} games of {game}")


def _winning(position: GamePosition, plies: int) -> dict[str, int]:
    """The plies each winning move needs; none where a win comes sooner, or whatever is played."""
    solver = Solver()
    if plies > 1 and solver.forced_win(position, plies - 2):
        return {}
    moves = position.moves()
    winning = {move: plies for move in moves if solver.wins_with(position, move, plies)}
    return winning if len(winning) < len(moves) else {}


def _placed(rng: np.random.Generator, pieces: tuple[str, ...]) -> ChessPosition | None:
    """Kings and some pieces on random squares, white to move; the black king stands at the edge, where mates happen."""
    edge = [
        square for square in chess.SQUARES if chess.square_rank(square) in (0, 7) or chess.square_file(square) in (0, 7)
    ]
    board = chess.Board(None)
    board.set_piece_at(edge[int(rng.integers(len(edge)))], chess.Piece.from_symbol("k"))
    free = [square for square in chess.SQUARES if board.piece_at(square) is None]
    for symbol, index in zip(("K", *pieces), rng.permutation(len(free)), strict=False):
        board.set_piece_at(free[index], chess.Piece.from_symbol(symbol))
    return ChessPosition(board) if board.is_valid() and not board.is_check() else None


def _draft(title: str, position: GamePosition, winning: dict[str, int], plies: int) -> Draft:
    moves = "your next move" if plies == 1 else f"your next {(plies + 1) // 2} moves, whatever the other does"
    prompt = f"{title}\n{position.shown()}\nFind the move that wins with {moves}. Answer with the move alone"
    losing = [move for move in position.moves() if move not in winning]
    return Draft(f"{prompt}, such as {losing[0]}.", min(winning), losing, {"winning": sorted(winning)})


KINDS = {
    "tic_tac_toe_puzzle": Kind(0, spiel_puzzle("tic_tac_toe", "Tic-tac-toe, x(row,column)", 3)),
    "connect_four_puzzle": Kind(1, spiel_puzzle("connect_four", "Connect four, x or o and the column", 5)),
    "breakthrough_puzzle": Kind(3, spiel_puzzle("breakthrough(rows=5,columns=4)", "Breakthrough", 5)),
    "hex_puzzle": Kind(4, spiel_puzzle("hex(board_size=4)", "Hex", 5)),
    "nim_puzzle": Kind(0, nim_puzzle),
    "row_puzzle": Kind(0, row_puzzle),
    "chess_puzzle": Kind(2, chess_puzzle),
}
