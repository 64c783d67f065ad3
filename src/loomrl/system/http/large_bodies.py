"""Bodies of requests that are large enough to keep others waiting while they are read."""

from loomrl.system.http.problems import Problem

LARGE = 2**14  # bytes of a body; parsing smaller ones costs no more than a decision does


def check_lists(body: bytes, num_bytes: int, most: int) -> None:
    """Refuse JSON, the first `num_bytes` of a large body, with more lists and objects than a request can have.

    They are what makes parsing slow: an empty list takes two bytes of a body, and 56 of memory.

    Raises:
        Problem: 413, for more than `most`.
    """
    if num_bytes < LARGE:
        return
    found = body.count(b"[", 0, num_bytes) + body.count(b"{", 0, num_bytes)
    if found > most:
        raise Problem(413, f"the body has {found} lists and objects; at most {most} are read in one request")
