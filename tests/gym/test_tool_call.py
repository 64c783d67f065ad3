"""Tools that are real, and episodes that use them."""

import json
import sqlite3
import threading

import numpy as np
import pytest

from loomrl.gym.domains import get_domain, get_environment
from loomrl.gym.domains.tool_call.tools import MAX_FILES, Toolbox, ToolError, shipped_documents
from loomrl.gym.tasks import Task

TOOLS = get_domain("tool_call")
WORLD = {
    "files": {"notes.txt": "guests: 4"},
    "documents": ["The lighthouse of Kelbar is 41 metres high."],
    "products": {"17": {"name": "lamp", "price": 9}},
}


@pytest.fixture
def toolbox() -> Toolbox:
    with_closing = Toolbox(WORLD)
    yield with_closing
    with_closing.close()


def test_each_tool_does_its_work(toolbox: Toolbox) -> None:
    assert toolbox.call("calculator", {"expression": "12*7 - 1"}) == "83"
    assert toolbox.call("calculator", {"expression": "1/3"}) == "0.333333333333333"
    assert toolbox.call("list_files", {}) == ["notes.txt"]
    assert toolbox.call("read_file", {"name": "notes.txt"}) == "guests: 4"
    assert toolbox.call("write_file", {"name": "new.txt", "text": "x"}) == "written"
    assert toolbox.file("new.txt") == "x"
    assert toolbox.call("search", {"query": "how high is kelbar?"})[0] == WORLD["documents"][0]
    assert toolbox.call("http_get", {"path": "/products"}) == [{"id": 17, "name": "lamp"}]
    assert toolbox.call("http_get", {"path": "/products/17"}) == {"id": 17, "name": "lamp", "price": 9}
    assert toolbox.call("http_post", {"path": "/orders", "body": {"product": 17, "quantity": 2}}) == {"order": 1}
    assert toolbox.call("http_get", {"path": "/orders"}) == [{"product": 17, "quantity": 2}]


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("hammer", {}, "no such tool; there are: calculator"),
        (None, {}, "no such tool"),
        ("calculator", {}, "takes the arguments expression"),
        ("calculator", {"expression": "1", "more": "1"}, "takes the arguments expression"),
        ("calculator", {"expression": 1}, "arguments are texts"),
        ("calculator", {"expression": "os.getcwd()"}, "not a formula"),
        ("calculator", {"expression": "(-1)^0.5"}, "no real number"),
        ("calculator", {"expression": "sqrt(-2)"}, "no real number"),
        ("read_file", {"name": "../notes.txt"}, "no such file"),
        ("read_file", {"name": "/etc/passwd"}, "no such file"),
        ("write_file", {"name": "a/b.txt", "text": ""}, "a file's name"),
        ("write_file", {"name": "a.txt", "text": "x" * 5_000}, "at most 4000 characters"),
        ("search", {"query": "\" * ' --"}, "a query has words"),
        ("http_get", {"path": "/nothing"}, "HTTP 404"),
        ("http_get", {"path": "http://example.org"}, "a path begins with /"),
        ("http_get", {"path": "/products\r\nHost: other"}, "a path begins with /"),
        ("http_post", {"path": "/orders", "body": {"product": 17}}, "HTTP 422"),
        ("http_post", {"path": "/orders", "body": {"product": True, "quantity": 1}}, "HTTP 422"),
        ("http_post", {"path": "/orders", "body": {"product": 99, "quantity": 1}}, "no product 99"),
        ("http_post", {"path": "/orders", "body": "x" * 5_000}, "HTTP 413"),
    ],
)
def test_what_a_tool_refuses_is_named(toolbox: Toolbox, tool: object, arguments: object, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        toolbox.call(tool, arguments)


def test_a_body_nested_at_any_depth_is_refused(toolbox: Toolbox) -> None:
    body: list[object] = []
    for _ in range(1_100):  # beyond what the service can read, and what can be written
        body = [body]
        with pytest.raises(ToolError, match=r"HTTP 422|HTTP 400|nested too deep"):
            toolbox.call("http_post", {"path": "/orders", "body": body})


def test_the_folder_does_not_fill(toolbox: Toolbox) -> None:
    for number in range(MAX_FILES - 1):
        toolbox.call("write_file", {"name": f"f{number}.txt", "text": "x"})
    with pytest.raises(ToolError, match="32 files already"):
        toolbox.call("write_file", {"name": "one_more.txt", "text": "x"})


def test_nothing_outlives_the_episode() -> None:
    toolbox = Toolbox(WORLD)
    toolbox.call("http_get", {"path": "/products"})
    folder, port = toolbox._files(), toolbox._service._server.server_port
    toolbox.close()
    assert not folder.exists()
    import socket

    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_an_environment_gives_back_what_an_unfinished_episode_held() -> None:
    environment = get_environment("tool_call")(kinds=["interface"])
    listing = '{"tool": "http_get", "arguments": {"path": "/products"}}'
    before = set(threading.enumerate())  # of other tests, which may end meanwhile
    for seed in range(3):
        environment.reset(seed=seed)
        environment.send(listing)
        assert set(threading.enumerate()) - before
    environment.close()
    assert not set(threading.enumerate()) - before


def test_a_query_is_words_and_never_syntax(toolbox: Toolbox) -> None:
    for query in ('lighthouse" OR "a', "NEAR(a b)", "text:lighthouse", "lighthouse*", "^lighthouse", "a AND NOT b"):
        assert isinstance(toolbox.call("search", {"query": query}), list)
    assert sqlite3.sqlite_version_info >= (3, 9)


def test_documents_are_shipped() -> None:
    assert len(shipped_documents()) >= 20


def task(kind: str, level: int = 5) -> Task:
    return TOOLS.generate(np.random.default_rng(8), level, [kind])


def test_calls_too_many_and_calls_that_fail_cost() -> None:
    interface = task("interface", 2)
    first, *rest = interface.facts["plan"]
    extra = TOOLS.score(interface, "\n".join([first, first, first, *rest])).rewards
    assert extra == {"success": 1.0, "completion": 1.0, "efficiency": pytest.approx(2 / 4)}
    failing = TOOLS.score(interface, "\n".join(['{"tool": "hammer", "arguments": {}}', first, *rest])).rewards
    assert failing == {
        "success": pytest.approx(2 / 3),
        "completion": 1.0,
        "efficiency": pytest.approx(2 / 3),
    }


def test_a_right_answer_without_a_call_is_complete_and_no_more() -> None:
    calculate = task("calculate", 0)
    rewards = TOOLS.score(calculate, calculate.facts["plan"][-1]).rewards
    assert rewards == {"success": 0.0, "completion": 1.0, "efficiency": 0.0}


def test_saying_done_is_not_doing_it() -> None:
    for kind in ("write_file", "order"):
        assert TOOLS.score(task(kind), '{"answer": "done"}').total == 0.0


def test_an_order_placed_twice_is_not_what_was_asked() -> None:
    order = task("order")
    listing, ordering, done = order.facts["plan"]
    assert TOOLS.score(order, "\n".join([listing, ordering, done])).total == pytest.approx(1.0)
    assert TOOLS.score(order, "\n".join([listing, ordering, ordering, done])).total == 0.0


def test_results_reach_the_policy() -> None:
    combined = task("combined", 6)
    episode = TOOLS.begin(combined)
    texts = [json.loads(episode.step(message).text)["result"] for message in combined.facts["plan"][:-1]]
    episode.close()
    assert texts[0].startswith("guests: ")
    assert "product number" in texts[1][0]
    assert texts[2]["price"] > 0
    assert texts[3] == combined.facts["answer"]


def test_an_episode_ends_after_twelve_calls() -> None:
    episode = TOOLS.begin(task("calculate"))
    finished = [episode.step("?").finished for _ in range(12)]
    episode.close()
    assert finished == [False] * 11 + [True]
