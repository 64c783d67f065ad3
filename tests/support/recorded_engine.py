"""A server that answers what it was told to: the shapes that vLLM and SGLang document, and how those fail."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, Any]  # status and JSON; a status of 0 is no answer before the client gives up
HANG_SECONDS = 1.5


class RecordedEngine:
    """Answers by path, the last answer of a path again and again; keeps what it was asked."""

    def __init__(self, answers: dict[str, list[Answer]]) -> None:
        self._answers = {path: list(said) for path, said in answers.items()}
        self.asked: list[tuple[str, Any]] = []  # paths and bodies, in order
        self.url = ""
        self._lock = threading.Lock()

    @property
    def paths(self) -> list[str]:
        """What was asked, without reading versions."""
        return [path for path, _ in self.asked if path not in ("/weight_info", "/model_info")]

    def answer(self, path: str, body: Any) -> Answer:
        """What is said to a request."""
        with self._lock:
            self.asked.append((path, body))
            said = self._answers.get(path)
            if said is None:
                return 404, {"detail": "Not Found"}
            return said.pop(0) if len(said) > 1 else said[0]


@contextmanager
def recorded(answers: dict[str, list[Answer]]) -> Iterator[RecordedEngine]:
    """Serve answers on a free port."""
    engine = RecordedEngine(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _say(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, said = engine.answer(self.path, json.loads(raw) if raw else None)
            if status == 0:
                time.sleep(HANG_SECONDS)
                self.close_connection = True
                return
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _say

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    engine.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
