"""Numbers, times and names as people read them."""

import math
from datetime import UTC, datetime


def number(value: float | None, digits: int = 4) -> str:
    """A number with `digits` significant figures, thousands separated, no exponent between 1e-4 and 1e15; "–" for None.

    Whole numbers are given in full.
    """
    if value is None:
        return "–"
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "NaN")
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}".replace("-", "−")
    if abs(value) < 1e-4 or abs(value) >= 1e15:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}".replace("-", "−")
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def percent(value: float | None) -> str:
    """A share, 1 being all, as per cent with one decimal at most: `12.5 %`; "–" for None."""
    return "–" if value is None else f"{number(round(100 * value, 1))} %"


def duration(seconds: float | None) -> str:
    """Seconds as people say them: `0.12 s`, `41 s`, `2 min 05 s`, `3 h 12 min`; "–" for None."""
    if seconds is None:
        return "–"
    if seconds < 10:
        return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def latency(seconds: float) -> str:
    """A short time, given in seconds, in the unit that suits it: `85 µs`, `1.5 ms`, `2 s`."""
    if seconds < 1e-3:
        return f"{number(seconds * 1e6, 3)} µs"
    return f"{number(seconds * 1e3, 3)} ms" if seconds < 1 else f"{number(seconds, 3)} s"


def moment(iso: str | None) -> str:
    """An ISO 8601 time as `2026-11-20 09:30:15 UTC`; other text as it is, "–" for None. Without a zone it counts as
    UTC."""
    if iso is None:
        return "–"
    try:
        time = datetime.fromisoformat(iso)
    except ValueError:
        return iso
    return f"{time.astimezone(UTC) if time.tzinfo else time:%Y-%m-%d %H:%M:%S} UTC"


def words(name: str) -> str:
    """A name with spaces for underscores: `statistically_supported` becomes `statistically supported`."""
    return name.replace("_", " ")


def middle(text: str, limit: int) -> str:
    """At most `limit` characters: the middle of longer text gives way to an ellipsis, as both ends tell ids apart."""
    if len(text) <= limit:
        return text
    end = (limit - 1) // 2
    return f"{text[: limit - 1 - end]}…{text[len(text) - end :]}"
