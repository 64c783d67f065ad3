"""Tables in documentation pages that are drawn from kept results, between two comments that name them."""

import re
from collections.abc import Iterable, Sequence


def filled(page: str, name: str, text: str) -> str:
    """The page with this text between `<!-- begin: name -->` and `<!-- end: name -->`."""
    place = re.compile(rf"(<!-- begin: {name} -->\n).*?(<!-- end: {name} -->)", re.DOTALL)
    return place.sub(lambda found: f"{found.group(1)}\n{text}\n\n{found.group(2)}", page)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Of Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows))
