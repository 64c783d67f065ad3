"""What tasks are about: files, facts and products that exist nowhere else, so that nobody can know them by heart."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from loomrl.gym.domains.tool_call.tools import DESCRIPTION
from loomrl.gym.tasks import Draft, Kind

_SYLLABLES = (
    "bar",
    "dol",
    "fen",
    "gar",
    "hul",
    "kel",
    "lor",
    "mir",
    "nad",
    "ost",
    "pel",
    "ruv",
    "sel",
    "tor",
    "vim",
    "zan",
)
_THINGS = ("lamp", "chair", "kettle", "clock", "mirror", "basket", "ladder", "blanket", "vase", "drum", "globe", "bell")
_FACTS = (
    ("In which year was the bridge of {place} built?", "The bridge of {place} was built in {number}.", 1600, 1999),
    ("How deep is the lake of {place}, in metres?", "The lake of {place} is {number} metres deep.", 11, 400),
    ("How many books does the library of {place} hold?", "The library of {place} holds {number} books.", 2000, 90000),
    ("How high is the lighthouse of {place}, in metres?", "The lighthouse of {place} is {number} metres high.", 15, 90),
)


def calculate(rng: np.random.Generator, level: int) -> Draft:
    """A task: compute a product and a sum, longer at higher levels."""
    terms = [f"{_number(rng, level + 1)}*{_number(rng, level + 1)}" for _ in range(1 + level // 3)]
    formula = "+".join([*terms, str(_number(rng, level + 2))])
    right = sum(_product(term) for term in formula.split("+"))
    return _draft(f"What is {formula}?", {}, [_call("calculator", expression=formula)], str(right), rng)


def product(rng: np.random.Generator, level: int) -> Draft:
    """A task: compute a product, longer at higher levels.

    The prompt is bare, so that the smallest policies can learn it.
    """
    formula = f"{_number(rng, 1 + (level + 1) // 2)}*{_number(rng, 1 + level // 2)}"
    draft = _draft("", {}, [_call("calculator", expression=formula)], str(_product(formula)), rng)
    return dataclasses.replace(draft, prompt=f"calculator {formula}=")


def read_file(rng: np.random.Generator, level: int) -> Draft:
    """A task: find what a line of a file says; from level 4 on the file has to be found first."""
    places = _places(rng, 2 + level // 2)
    files = {f"{place}.txt": _lines(rng, 2 + level) for place in places}
    place = places[int(rng.integers(len(places)))]
    lines = files[f"{place}.txt"].split("\n")
    key, _, right = lines[int(rng.integers(len(lines)))].partition(": ")
    if level < 4:
        question = f"What does the file {place}.txt say of `{key}`?"
        return _draft(question, {"files": files}, [_call("read_file", name=f"{place}.txt")], right, rng)
    hidden = f"{place}_{_number(rng, 2)}.txt"
    files[hidden] = files.pop(f"{place}.txt")
    question = f"One of the files is about {place}. What does it say of `{key}`?"
    return _draft(question, {"files": files}, [_call("list_files"), _call("read_file", name=hidden)], right, rng)


def search(rng: np.random.Generator, level: int) -> Draft:
    """A task: find a fact about a place among facts about others."""
    places = _places(rng, 3 + level)
    documents, asked = [], []
    for place in places:
        question, fact, low, high = _FACTS[int(rng.integers(len(_FACTS)))]
        number = str(int(rng.integers(low, high)))
        documents.append(fact.format(place=place.capitalize(), number=number))
        asked.append((question.format(place=place.capitalize()), number, place))
    question, right, place = asked[int(rng.integers(len(asked)))]
    return _draft(question, {"documents": documents}, [_call("search", query=place)], right, rng)


def interface(rng: np.random.Generator, level: int) -> Draft:
    """A task: find the price of a product by the shop's interface, from level 5 on of several of it."""
    products, number, name, price = _shop(rng, level)
    calls = [_call("http_get", path="/products"), _call("http_get", path=f"/products/{number}")]
    if level < 5:
        question = f"What does the {name} cost in the shop? Its interface lists the products."
        return _draft(question, {"products": products}, calls, str(price), rng)
    quantity = int(rng.integers(3, 30))
    question = f"What do {quantity} of the {name} cost in the shop? Its interface lists the products."
    calls.append(_call("calculator", expression=f"{quantity}*{price}"))
    return _draft(question, {"products": products}, calls, str(quantity * price), rng)


def write_file(rng: np.random.Generator, level: int) -> Draft:
    """A task: write the sum of a file's numbers to another file."""
    numbers = [_number(rng, 2 + level // 3) for _ in range(2 + level // 2)]
    files = {"numbers.txt": "\n".join(map(str, numbers))}
    calls = [
        _call("read_file", name="numbers.txt"),
        _call("calculator", expression="+".join(map(str, numbers))),
        _call("write_file", name="sum.txt", text=str(sum(numbers))),
    ]
    question = "Write the sum of the numbers in numbers.txt to sum.txt, then answer done."
    wanted = {"file": {"name": "sum.txt", "text": str(sum(numbers))}}
    return _draft(question, {"files": files}, calls, "done", rng, wanted)


def order(rng: np.random.Generator, level: int) -> Draft:
    """A task: order a product, once, that is named but whose number must be found."""
    products, number, name, _ = _shop(rng, level)
    body = {"product": int(number), "quantity": int(rng.integers(2, 20))}
    calls = [_call("http_get", path="/products"), _call("http_post", path="/orders", body=body)]
    question = f"Order {body['quantity']} of the {name} in the shop, exactly once, then answer done."
    return _draft(question, {"products": products}, calls, "done", rng, {"orders": [body]})


def combined(rng: np.random.Generator, level: int) -> Draft:
    """A task: find a total price, of a quantity from a file, a product from a document and its price from the shop."""
    products, number, name, price = _shop(rng, level)
    place, quantity = _places(rng, 1)[0], int(rng.integers(3, 40))
    world = {
        "products": products,
        "files": {f"{place}.txt": f"guests: {quantity}"},
        "documents": [f"Every guest of the house {place.capitalize()} is given the product number {number}."],
    }
    calls = [
        _call("read_file", name=f"{place}.txt"),
        _call("search", query=place),
        _call("http_get", path=f"/products/{number}"),
        _call("calculator", expression=f"{quantity}*{price}"),
    ]
    question = (
        f"{place}.txt says how many guests the house {place.capitalize()} has, a document which product each is "
        "given, and the shop what it costs. What do the gifts cost in all?"
    )
    return _draft(question, world, calls, str(quantity * price), rng)


def _draft(
    question: str,
    world: dict[str, Any],
    calls: Sequence[str],
    right: str,
    rng: np.random.Generator,
    wanted: dict[str, Any] | None = None,
) -> Draft:
    """`wanted` is the state of the world a task asks for, beside its answer."""
    off = [str(int(right) + step) for step in (1, -1, 10)] if right.isdigit() else ["yes", "failed", "42"]
    wrong = [_answer(one) for one in off] + ([_answer(right)] if wanted else [])
    facts = {"world": world, "plan": [*calls, _answer(right)], "answer": right, "wanted": wanted or {}}
    decoys = [_call("search", query=str(rng.integers(100, 999))), _call("read_file", name="nothing.txt")]
    return Draft(f"{DESCRIPTION}\n{question}", "\n".join(facts["plan"]), wrong, {**facts, "decoys": [*wrong, *decoys]})


def _call(tool: str, **arguments: Any) -> str:
    return json.dumps({"tool": tool, "arguments": arguments})


def _answer(text: str) -> str:
    return json.dumps({"answer": text})


def _number(rng: np.random.Generator, digits: int) -> int:
    return int(rng.integers(10 ** (digits - 1), 10**digits))


def _product(term: str) -> int:
    left, _, right = term.partition("*")
    return int(left) * int(right or 1)


def _places(rng: np.random.Generator, count: int) -> list[str]:
    """Names that are no words, all different."""
    first = rng.permutation(len(_SYLLABLES))
    return [_SYLLABLES[first[index]] + _SYLLABLES[int(rng.integers(len(_SYLLABLES)))] for index in range(count)]


def _lines(rng: np.random.Generator, count: int) -> str:
    return "\n".join(f"{_THINGS[index]}: {_number(rng, 3)}" for index in rng.permutation(len(_THINGS))[:count])


def _shop(rng: np.random.Generator, level: int) -> tuple[dict[str, dict[str, Any]], str, str, int]:
    """Products, and one of them: its number, name and price."""
    names = [_THINGS[index] for index in rng.permutation(len(_THINGS))[: 3 + level]]
    numbers = rng.choice(np.arange(10, 99), size=len(names), replace=False)
    prices = rng.integers(5, 500, size=len(names))
    products: dict[str, dict[str, Any]] = {
        str(number): {"name": name, "price": int(price)}
        for number, name, price in zip(numbers, names, prices, strict=True)
    }
    number = str(numbers[int(rng.integers(len(names)))])
    name, price = products[number].values()
    return products, number, name, price


KINDS = {
    "calculate": Kind(0, calculate),
    "read_file": Kind(0, read_file),
    "search": Kind(1, search),
    "interface": Kind(2, interface),
    "write_file": Kind(3, write_file),
    "order": Kind(4, order),
    "combined": Kind(6, combined),
    "product": Kind(0, product),
}
