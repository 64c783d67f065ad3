"""Exact search: who wins by force, and how soon."""

from loomrl.gym.domains.game.positions import GamePosition

_MOST_KNOWN = 200_000
Known = dict[tuple[str, int], int]


class Solver:
    """Values of positions of one game within a number of plies; remembers what it has found.

    A value is for the player to move: n > 0 wins with n plies to spare, so that sooner is more; below 0 loses alike;
    0 is a draw, or nothing forced within the plies.
    """

    def __init__(self) -> None:
        self._known: Known = {}

    def _remember(self, key: tuple[str, int], value: int) -> int:
        """Of big games there is more to know than memory holds."""
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[key] = value
        return value

    def value(self, position: GamePosition, plies: int) -> int:
        """The value of a position."""
        result = position.result(position.player)
        if result is not None:
            return result * (plies + 1)
        if plies == 0:
            return 0
        key = (position.key, plies)
        if key in self._known:
            return self._known[key]
        return self._remember(key, max(self.after(position, move, plies) for move in position.moves()))

    def after(self, position: GamePosition, move: str, plies: int) -> int:
        """The value of a move to the player who makes it, looking `plies` half-moves ahead."""
        following = position.play(move)
        result = following.result(position.player)
        if result is not None:
            return result * plies
        worth = self.value(following, plies - 1)
        return worth if following.player == position.player else -worth

    def best(self, position: GamePosition, plies: int) -> list[str]:
        """The moves of greatest value in a position, sorted."""
        worth = {move: self.after(position, move, plies) for move in position.moves()}
        return [move for move in position.moves() if worth[move] == max(worth.values())]

    def forced_win(self, position: GamePosition, plies: int) -> bool:
        """Whether the player to move wins within an odd number of plies whatever the other does, players taking turns.

        Stops at the first winning move and the first refutation, so that it is much faster than `value`.
        """
        key = (position.key, -plies)
        if key in self._known:
            return bool(self._known[key])
        return bool(self._remember(key, any(self.wins_with(position, move, plies) for move in position.moves())))

    def wins_with(self, position: GamePosition, move: str, plies: int) -> bool:
        """Whether a move wins by force within the plies."""
        following = position.play(move)
        result = following.result(position.player)
        if result is not None:
            return result > 0
        if plies <= 1:
            return False
        return all(self._still_wins(following, reply, position.player, plies - 2) for reply in following.moves())

    def _still_wins(self, position: GamePosition, reply: str, player: int, plies: int) -> bool:
        after = position.play(reply)
        result = after.result(player)
        return result > 0 if result is not None else self.forced_win(after, plies)
