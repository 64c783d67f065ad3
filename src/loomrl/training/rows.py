"""The rows of a learning curve, as many as anybody looks at."""

from loomrl.types import Json

LIMIT = 4_000
_LATEST = ("step", "num_episodes")  # counted upwards: of a mean row the last one's


class CurveRows:
    """Rows of numbers, one for each update, at most `limit`: when they are that many, each two neighbours become their
    mean.

    From then on a row stands for twice as many updates. What training keeps, and every checkpoint with it, stays small
    however often it updates. `latest` is the last update's own row; empty before the first.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._rows: list[Json] = []
        self._every = 1  # updates that a row stands for
        self._pending: list[Json] = []  # those that are no row yet
        self.latest: Json = {}

    def add(self, row: Json) -> None:
        """Add an update's row: its `step` and other numbers, which need not be the same in all rows."""
        self.latest = row
        self._pending.append(row)
        if len(self._pending) == self._every:
            self._rows.append(mean_row(self._pending))
            self._pending = []
        if len(self._rows) == self._limit:
            self._rows = [mean_row(self._rows[at : at + 2]) for at in range(0, self._limit, 2)]
            self._every *= 2

    def all(self) -> list[Json]:
        """All rows in the order of their steps; the last may stand for fewer updates than the others."""
        return self._rows + ([mean_row(self._pending)] if self._pending else [])

    def state_dict(self) -> Json:
        """The rows, the number of updates that each stands for, those that are no row yet, and the latest: JSON
        values."""
        pending = self._pending.copy()
        return {"rows": self._rows.copy(), "every": self._every, "pending": pending, "latest": self.latest}

    def load_state_dict(self, state: Json) -> None:
        """Continue with the rows of a `state_dict()`; those that were here are dropped."""
        self._rows, self._every, self.latest = list(state["rows"]), state["every"], state["latest"]
        self._pending = list(state["pending"])


def mean_row(rows: list[Json]) -> Json:
    """One row for several (one at least): each number's mean over the rows that have it; of `step` and `num_episodes`
    the last."""
    if len(rows) == 1:
        return rows[0]
    names = dict.fromkeys(name for row in rows for name in row)
    values = {name: [row[name] for row in rows if name in row] for name in names}
    return {name: found[-1] if name in _LATEST else sum(found) / len(found) for name, found in values.items()}
