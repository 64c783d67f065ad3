"""The tools: a calculator, files in a folder of their own, full-text search, an HTTP interface. All are real."""

import json
import re
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from loomrl.gym.domains.math.expressions import NotAFormula, parse
from loomrl.gym.domains.math.values import arithmetic, value
from loomrl.gym.domains.tool_call.service import Service, Shop

MAX_FILES, MAX_FILE_CHARACTERS, MAX_RESULTS = 32, 4_000, 3
_FILE_NAME = re.compile(r"[a-z0-9_]{1,40}\.txt", re.ASCII)
_PATH = re.compile(r"/[a-z0-9/]{1,60}", re.ASCII)
DESCRIPTION = """Tools:
calculator {"expression"}; list_files {}; read_file {"name"}; write_file {"name", "text"};
search {"query"}; http_get {"path"}; http_post {"path", "body"}, with the paths /products, /products/ID, /orders
Send one JSON object a message: {"tool": NAME, "arguments": {...}}, at last {"answer": "..."}."""


class ToolError(Exception):
    """A call that did not succeed, and why."""


class Toolbox:
    """The tools of one episode and the world they act in; nothing of it outlives `close`.

    `world` may have `files`, texts by name, `documents`, a list of texts to search, and `products` of the shop.
    """

    def __init__(self, world: Mapping[str, Any]) -> None:
        self._world = world
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._service: Service | None = None
        self.shop = Shop(world.get("products", {}))
        self._tools: dict[str, tuple[Callable[..., Any], frozenset[str]]] = {
            "calculator": (self._calculate, frozenset({"expression"})),
            "list_files": (self._list_files, frozenset()),
            "read_file": (self._read_file, frozenset({"name"})),
            "write_file": (self._write_file, frozenset({"name", "text"})),
            "search": (self._search, frozenset({"query"})),
            "http_get": (self._http_get, frozenset({"path"})),
            "http_post": (self._http_post, frozenset({"path", "body"})),
        }

    def call(self, name: Any, arguments: Any) -> Any:
        """What a tool returns: a JSON value, such as a text or a list of them.

        Raises:
            ToolError: for an unknown tool, wrong arguments, or what the tool refuses.
        """
        if not isinstance(name, str) or name not in self._tools:
            raise ToolError(f"there is no such tool; there are: {', '.join(self._tools)}")
        tool, wanted = self._tools[name]
        if not isinstance(arguments, dict) or set(arguments) != wanted:
            raise ToolError(f"{name} takes the arguments {', '.join(sorted(wanted)) or 'none'}")
        texts = {key: one for key, one in arguments.items() if key != "body"}
        if any(not isinstance(one, str) or len(one) > MAX_FILE_CHARACTERS for one in texts.values()):
            raise ToolError(f"arguments are texts of at most {MAX_FILE_CHARACTERS} characters")
        return tool(**arguments)

    def file(self, name: str) -> str | None:
        """The text of a file, None where there is none."""
        path = self._files() / name
        return path.read_text() if path.is_file() else None

    def close(self) -> None:
        """Stop the HTTP service and remove the tools' folder."""
        if self._service is not None:
            self._service.close()
            self._service = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _calculate(self, expression: str) -> str:
        try:
            number = value(parse(expression), {})
        except NotAFormula as error:
            raise ToolError(f"not a formula: {error}") from error
        if isinstance(number, arithmetic().mpc):
            raise ToolError("the result is no real number")
        whole = arithmetic().nint(number)
        return str(int(whole)) if number == whole else str(arithmetic().nstr(number, 15))

    def _list_files(self) -> list[str]:
        return sorted(path.name for path in self._files().iterdir())

    def _read_file(self, name: str) -> str:
        text = self.file(name) if _FILE_NAME.fullmatch(name) else None
        if text is None:
            raise ToolError("there is no such file")
        return text

    def _write_file(self, name: str, text: str) -> str:
        if not _FILE_NAME.fullmatch(name):
            raise ToolError("a file's name is of a-z, 0-9 and _, and ends in .txt")
        if len(self._list_files()) >= MAX_FILES and self.file(name) is None:
            raise ToolError(f"there are {MAX_FILES} files already")
        (self._files() / name).write_text(text, errors="replace")
        return "written"

    def _search(self, query: str) -> list[str]:
        words = re.findall(r"[a-z0-9]+", query.lower(), re.ASCII)[:16]
        if not words:
            raise ToolError("a query has words")
        with sqlite3.connect(":memory:") as database:
            database.execute("CREATE VIRTUAL TABLE documents USING fts5(text)")
            texts = [*shipped_documents(), *self._world.get("documents", [])]
            database.executemany("INSERT INTO documents VALUES (?)", [(text,) for text in texts])
            matched = " OR ".join(f'"{word}"' for word in words)
            sql = "SELECT text FROM documents WHERE documents MATCH ? ORDER BY rank, rowid LIMIT ?"
            rows = database.execute(sql, (matched, MAX_RESULTS)).fetchall()
        database.close()
        return [text for (text,) in rows]

    def _http_get(self, path: str) -> Any:
        return self._request("GET", path, None)

    def _http_post(self, path: str, body: Any) -> Any:
        try:
            return self._request("POST", path, json.dumps(body))
        except RecursionError as error:
            raise ToolError("the body is nested too deep") from error

    def _request(self, method: str, path: str, body: str | None) -> Any:
        if not _PATH.fullmatch(path):
            raise ToolError("a path begins with / and is of a-z, 0-9 and /")
        if self._service is None:
            self._service = Service(self.shop)
        status, content = self._service.request(method, path, body)
        if status >= 400:
            raise ToolError(f"HTTP {status}: {content['error']}")
        return content

    def _files(self) -> Path:
        """The folder, with the task's files in it."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="loomrl_tools_")
            for name, text in self._world.get("files", {}).items():
                Path(self._folder.name, name).write_text(text)
        return Path(self._folder.name)


@cache
def shipped_documents() -> tuple[str, ...]:
    """The documents that come with LoomRL and are searched besides a task's own."""
    return tuple(json.loads(Path(__file__).with_name("documents.json").read_text()))
