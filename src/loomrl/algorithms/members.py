"""Tells a misspelt name from one of somebody's own."""

from collections.abc import Iterable

_LONG = 10  # letters from which on two of them may be wrong


def misspelt(names: Iterable[str], known: Iterable[str]) -> tuple[str, str] | None:
    """A pair (name, known name): a public name that looks like a misspelling of a known one which is not among `names`.
    None where there is no such pair; of several, the first in alphabetical order.

    A misspelling differs, but for capitals and underscores, by one letter that is wrong, missing, too many or has
    changed places with the next; in a name of ten letters or more, by two. A longer name with the known one at its end,
    such as `MyPolicy`, is not taken for one.
    """
    found = {name for name in names if not name.startswith("_")}
    absent = sorted(set(known) - found)
    slips = [(_distance(name, right), name, right) for name in found - set(known) for right in absent]
    return min(
        ((name, right) for distance, name, right in sorted(slips) if distance <= _allowed(name, right)), default=None
    )


def describe_slip(name: str, right: str) -> str:
    """The message about a misspelt name: a sentence that begins with `name`, asks whether `right` was meant, and says
    what to do."""
    return (
        f"{name}: unknown member; did you mean {right!r}? Rename it; one that is meant to be something else begins "
        "with an underscore"
    )


def _plain(name: str) -> str:
    return name.replace("_", "").casefold()


def _allowed(name: str, right: str) -> int:
    name, right = _plain(name), _plain(right)
    return 2 if len(right) >= _LONG and not name.endswith(right) else 1


def _distance(name: str, right: str) -> int:
    """Edits that make one of the other: letters put in, left out, replaced, or swapped with the next."""
    a, b = _plain(name), _plain(right)
    rows = [list(range(len(b) + 1))]
    for i, letter in enumerate(a, 1):
        row = [i]
        for j, other in enumerate(b, 1):
            best = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                best = min(best, rows[-2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]
