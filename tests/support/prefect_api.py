"""A client of a Prefect server's API."""

import time

import httpx


class Patient(httpx.HTTPTransport):
    """Asks again while the server's database is busy (503), as Prefect's own client does."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        for _ in range(20):
            answer = super().handle_request(request)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            answer.close()
            time.sleep(0.5)
        return answer


def prefect_api(url: str, login: str = "") -> httpx.Client:
    """Of the server whose API has this URL; `login` is USER:PASSWORD."""
    auth = httpx.BasicAuth(*login.split(":", 1)) if login else None
    return httpx.Client(base_url=url, timeout=30, transport=Patient(), auth=auth)
