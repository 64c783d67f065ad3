"""Positions of two-player games with full information: of open_spiel, and of chess."""

from typing import Any, Protocol, Self

import chess
import pyspiel


class GamePosition(Protocol):
    """A position and its rules. Players are 0 and 1; positions do not change."""

    @property
    def key(self) -> str:
        """Text that differs between different positions."""
        ...

    @property
    def player(self) -> int:
        """The player to move, 0 or 1, while the game goes on."""
        ...

    def moves(self) -> list[str]:
        """The legal moves, sorted; none where the game is over."""
        ...

    def play(self, move: str) -> Self:
        """The position after a legal move; this one stays as it is."""
        ...

    def result(self, player: int) -> int | None:
        """1 won, 0 drawn, -1 lost for a player; None while the game goes on."""
        ...

    def shown(self) -> str:
        """The position as text for a prompt, the board in rows."""
        ...


class SpielPosition:
    """A position of any sequential game of open_spiel with two players and no chance."""

    def __init__(self, state: Any) -> None:
        self._state = state

    @classmethod
    def start(cls, game: str) -> "SpielPosition":
        """The first position of a game, named with its parameters as open_spiel does."""
        return cls(pyspiel.load_game(game).new_initial_state())

    @property
    def key(self) -> str:
        """Text that differs between different positions: the player to move and the board."""
        return f"{self._state.current_player()} {self._state}"

    @property
    def player(self) -> int:
        """The player to move, 0 or 1, while the game goes on."""
        return int(self._state.current_player())

    def moves(self) -> list[str]:
        """The legal moves as open_spiel names them, sorted; none where the game is over."""
        return sorted(self._actions())

    def play(self, move: str) -> "SpielPosition":
        """The position after a legal move; this one stays as it is. KeyError for a move that is not legal."""
        return SpielPosition(self._state.child(self._actions()[move]))

    def result(self, player: int) -> int | None:
        """1 won, 0 drawn, -1 lost for a player; None while the game goes on."""
        if not self._state.is_terminal():
            return None
        earned = float(self._state.player_return(player))
        return (earned > 0) - (earned < 0)

    def shown(self) -> str:
        """The position as open_spiel writes it, the board in rows."""
        return str(self._state)

    def _actions(self) -> dict[str, int]:
        if self._state.is_terminal():
            return {}
        return {self._state.action_to_string(action): action for action in self._state.legal_actions()}


class ChessPosition:
    """A chess position; moves are in UCI notation, such as e2e4. White is player 0."""

    def __init__(self, board: chess.Board) -> None:
        self._board = board

    @property
    def key(self) -> str:
        """Text that differs between different positions: the board in extended position description (EPD)."""
        return self._board.epd()

    @property
    def player(self) -> int:
        """The player to move: 0 is White, 1 is Black."""
        return 0 if self._board.turn == chess.WHITE else 1

    def moves(self) -> list[str]:
        """The legal moves, sorted; none after checkmate and stalemate."""
        return sorted(move.uci() for move in self._board.legal_moves)

    def play(self, move: str) -> "ChessPosition":
        """The position after a move; that it is legal is not checked. ValueError for what is no move in UCI."""
        board = self._board.copy(stack=False)
        board.push(chess.Move.from_uci(move))
        return ChessPosition(board)

    def result(self, player: int) -> int | None:
        """1 won, 0 drawn, -1 lost for a player; None while the game goes on.

        Drawn are stalemates and positions without material for a mate, and no others.
        """
        if self._board.is_checkmate():
            return -1 if self.player == player else 1
        return 0 if self._board.is_stalemate() or self._board.is_insufficient_material() else None

    def shown(self) -> str:
        """The position as text for a prompt: the board in rows, who is to move, and the position in FEN."""
        return f"{self._board}\n{'White' if self.player == 0 else 'Black'} to move. FEN: {self._board.fen()}"
