"""Another worker, which is told what people order."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING

from loomrl.storage.loomdb.records import Control
from loomrl.system.background import Background

if TYPE_CHECKING:
    from loomrl.serving.controls.order_file import SavedControls

Give = Callable[["SavedControls"], "SavedControls | None"]  # to another worker; what that knows, None if not confirmed
Orders = Mapping[str, tuple[Control, ...]]  # by name; replaced, never changed


class Peer:
    """Told by a thread of its own, so that one that does not answer keeps no other waiting; what is ordered while it
    is told is told together afterwards.

    `give` gives it orders and returns what it knows. `news` are the orders that are known here now, and what of them
    is not among those that it confirmed; `take` hears what it knows. To begin with it knows `confirmed`.
    """

    def __init__(
        self,
        give: Give,
        news: "Callable[[Orders], tuple[Orders, SavedControls]]",
        take: "Callable[[SavedControls], object]",
        confirmed: Orders,
    ) -> None:
        self._give, self._news, self._take = give, news, take
        self.confirmed = confirmed  # what it knows
        self.is_silent = False  # whether it did not confirm when it was told last
        self._telling = Background(self._tell)

    def begin(self) -> Future[None]:
        """Have it told what it does not know; returns what is done when it was."""
        return self._telling.begin()

    def _tell(self) -> None:
        is_silent = True
        try:
            known, news = self._news(self.confirmed)
            if (answer := self._give(news)) is not None:
                self._take(answer)
                self.confirmed, is_silent = known, False
        finally:
            self.is_silent = is_silent
