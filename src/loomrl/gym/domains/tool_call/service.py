"""A shop's HTTP service on loopback: what tasks about interfaces call. It lives as long as an episode."""

import http.client
import json
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

MAX_BODY_BYTES = 4_096
MAX_ORDERS = 100
_PRODUCT = re.compile(r"/products/([0-9]{1,9})", re.ASCII)


class Shop:
    """A shop's products, name and price by number, and the orders that were placed."""

    def __init__(self, products: Mapping[str, Mapping[str, Any]]) -> None:
        self.products = products
        self.orders: list[dict[str, int]] = []

    def get(self, path: str) -> tuple[int, Any]:
        """Answer GET `/products`, `/products/NUMBER` or `/orders`: status and JSON body."""
        if path == "/products":
            return 200, [{"id": int(number), "name": one["name"]} for number, one in self.products.items()]
        if path == "/orders":
            return 200, self.orders
        found = _PRODUCT.fullmatch(path)
        if found and found.group(1) in self.products:
            return 200, {"id": int(found.group(1)), **self.products[found.group(1)]}
        return 404, {"error": f"there is no {path}"}

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Answer POST `/orders` with `{"product": NUMBER, "quantity": NUMBER}`: status and JSON body."""
        if path != "/orders":
            return 404, {"error": f"nothing can be posted to {path}"}
        if not isinstance(body, dict) or set(body) != {"product", "quantity"}:
            return 422, {"error": "an order has exactly the fields product and quantity"}
        if any(type(number) is not int for number in body.values()) or not 1 <= body["quantity"] <= 1_000:
            return 422, {"error": "product and quantity are whole numbers, quantity from 1 to 1000"}
        if str(body["product"]) not in self.products:
            return 422, {"error": f"there is no product {body['product']}"}
        if len(self.orders) >= MAX_ORDERS:
            return 429, {"error": "too many orders"}
        self.orders.append(body)
        return 201, {"order": len(self.orders)}


class Service:
    """A shop behind HTTP, in a thread of its own."""

    def __init__(self, shop: Shop) -> None:
        handler = type("Handler", (_Handler,), {"shop": shop})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def request(self, method: str, path: str, body: str | None) -> tuple[int, Any]:
        """Status and JSON of a response; `body` is JSON already, or None for none.

        Raises:
            OSError: when the service is closed, or does not answer within 30 s.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self._server.server_port, timeout=30)
        try:
            connection.request(method, path, body)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def close(self) -> None:
        """Stop the HTTP server and wait for its thread to end."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    shop: ClassVar[Shop]

    def do_GET(self) -> None:
        self._answer(*self.shop.get(self.path))

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        if length > MAX_BODY_BYTES:
            self._answer(413, {"error": f"a body has at most {MAX_BODY_BYTES} bytes"})
            return
        try:
            body = json.loads(self.rfile.read(length))
        except (ValueError, RecursionError):
            self._answer(400, {"error": "the body is not JSON, or nested too deep"})
            return
        self._answer(*self.shop.post(self.path, body))

    def _answer(self, status: int, content: Any) -> None:
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        """Nobody reads it."""
