"""Texts of others on a terminal: what they hold is shown, and does nothing."""


def on_one_line(text: str) -> str:
    r"""A text in which whatever a terminal would obey, or break a line at, stands escaped, such as `\x1b` or `\n`."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
