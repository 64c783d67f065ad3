"""A console on which texts of others do nothing to the terminal."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.segment import Segment

from loomrl.system.plain import on_one_line


class PlainConsole(Console):
    r"""rich's console, which shows what a terminal would obey as `on_one_line` does: rich itself lets `\x1b` pass."""

    def render(self, *args: Any, **options: Any) -> Iterable[Segment]:
        """The segments of a renderable, whose texts hold nothing but what can be seen, and ends of lines."""
        for text, style, control in super().render(*args, **options):
            yield Segment(text if control else "\n".join(map(on_one_line, text.split("\n"))), style, control)
