"""What the server answers when it cannot do what was asked: a status and a sentence that names the fix."""

from http import HTTPStatus


class Problem(Exception):
    """Raised for a request that is refused: it becomes the response `{"error": message}` with this status and headers.

    A status that HTTP does not know raises `ValueError`.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = HTTPStatus(status)
        self.message = message
        self.headers = headers or {}
