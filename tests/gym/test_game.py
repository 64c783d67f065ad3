"""Moves judged by search, and games against opponents."""

import chess
import numpy as np
import pytest

from loomrl.gym.domains import get_domain
from loomrl.gym.domains.game.matches import Match, Opponent
from loomrl.gym.domains.game.positions import ChessPosition, SpielPosition
from loomrl.gym.domains.game.search import Solver
from loomrl.gym.tasks import Task

GAME = get_domain("game")


def position(game: str, *moves: str) -> SpielPosition:
    start = SpielPosition.start(game)
    for move in moves:
        start = start.play(move)
    return start


def test_tic_tac_toe_is_a_draw() -> None:
    assert Solver().value(position("tic_tac_toe"), 9) == 0


def test_a_win_in_one_is_found_and_sooner_is_better() -> None:
    board = position("tic_tac_toe", "x(0,0)", "o(1,0)", "x(0,1)", "o(1,1)")
    assert Solver().best(board, 9) == ["x(0,2)"]
    assert Solver().wins_with(board, "x(0,2)", 1)
    assert not Solver().wins_with(board, "x(2,2)", 1)


def test_a_fork_wins_in_three_plies() -> None:
    board = position("tic_tac_toe", "x(0,0)", "o(0,1)")
    assert Solver().forced_win(board, 5)
    assert not Solver().forced_win(board, 1)


def test_a_back_rank_mate_is_found() -> None:
    board = ChessPosition(chess.Board("6k1/5ppp/8/8/8/8/8/R5K1 w - - 0 1"))
    assert [move for move in board.moves() if Solver().wins_with(board, move, 1)] == ["a1a8"]


def test_chess_puzzles_are_mates_by_another_judge() -> None:
    rng = np.random.default_rng(5)
    for _ in range(5):
        task = GAME.generate(rng, 2, ["chess_puzzle"])
        board = chess.Board(task.prompt.split("FEN: ")[1].split("\n")[0])
        board.push_uci(task.right)
        assert board.is_checkmate()
        for move in task.wrong:
            board.pop()
            board.push_uci(move)
            assert not board.is_checkmate()


def test_a_row_puzzle_is_won_by_completing_a_row() -> None:
    lines = [{(row, column) for column in range(3)} for row in range(3)]
    lines += [{(row, column) for row in range(3)} for column in range(3)]
    lines += [{(index, index) for index in range(3)}, {(index, 2 - index) for index in range(3)}]
    rng = np.random.default_rng(0)
    for _ in range(30):
        task = GAME.generate(rng, 0, ["row_puzzle"])
        board, player = task.prompt.rstrip("=").split(" ")
        owned = {
            (row, column)
            for row, shown in enumerate(board.split("/"))
            for column, mark in enumerate(shown)
            if mark == player
        }
        for move in [task.right, *task.wrong]:
            square = (int(move[2]), int(move[4]))
            assert any(line <= owned | {square} for line in lines) == (move == task.right)


def test_nim_is_won_by_balancing() -> None:
    rng = np.random.default_rng(0)
    for level in (0, 3, 6, 9):
        task = GAME.generate(rng, level, ["nim_puzzle"])
        piles = [int(size) for size in task.prompt.split(":")[0].split()[1:]]
        board = position(f"nim(is_misere=false,pile_sizes={';'.join(map(str, piles))})")
        for move in board.moves():
            pile, taken = (part.split(":")[1].strip("; ") for part in move.split(","))
            wins = Solver().value(board.play(move), sum(piles)) < 0
            assert (GAME.score(task, f"{pile}-{taken}").total == 1.0) == wins


def match(mistakes: float, begins: bool = True, greedy: bool = False) -> Match:
    facts = {"game": "tic_tac_toe", "begins": begins, "mistakes": mistakes, "greedy": greedy, "seed": 1}
    return Match(Task("game", "tic_tac_toe_match", 0, "", "", (), facts), 9)


def test_best_play_never_loses_to_the_best_opponent() -> None:
    for begins in (True, False):
        playing = match(0.0, begins)
        while not (turn := playing.step(playing.best())).finished:
            pass
        assert "drawn" in turn.text
        assert turn.rewards["winning"] == 1.0


def test_a_draw_earns_nothing_where_a_win_was_to_be_had() -> None:
    """The opponent lets go of the draw; taking back the win again is no best result."""
    earned = []
    for seed in range(30):
        facts = {"game": "tic_tac_toe", "begins": True, "mistakes": 1.0, "greedy": False, "seed": seed}
        playing, rng = Match(Task("game", "m", 0, "", "", (), facts), 9), np.random.default_rng(seed)
        while not (turn := playing.step(playing.choices(rng)[int(rng.integers(len(playing.choices(rng))))])).finished:
            pass
        if "drawn" in turn.text:
            earned.append(turn.rewards["winning"])
        if "lost" in turn.text:
            assert "winning" not in turn.rewards
    assert 0.0 in earned


def test_an_illegal_move_loses_at_once() -> None:
    playing = match(0.5)
    assert playing.step("x(1,1)").finished is False
    turn = playing.step("x(1,1)")
    assert (turn.finished, turn.rewards) == (True, {})


def test_a_whole_game_pays_for_good_moves_on_the_way() -> None:
    task = GAME.generate(np.random.default_rng(0), 3, ["tic_tac_toe_match"])
    episode = GAME.begin(task)
    first = episode.step(task.right.split("\n")[0])
    assert first.rewards == {"optimal_moves": pytest.approx(0.2)}


def test_opponents_differ_in_skill_and_style() -> None:
    """x can win at once; o must see the fork that comes after it."""
    board = position("tic_tac_toe", "x(0,0)", "o(1,1)", "x(0,1)")
    assert Opponent("tic_tac_toe", 0.0, greedy=False, seed=0).reply(board) == "o(0,2)"
    greedy = {Opponent("tic_tac_toe", 0.0, greedy=True, seed=seed).reply(board) for seed in range(30)}
    assert len(greedy) > 1  # one move ahead nothing is won, so it plays anything
    careless = {Opponent("tic_tac_toe", 1.0, greedy=False, seed=seed).reply(board) for seed in range(30)}
    assert careless == set(board.moves())
