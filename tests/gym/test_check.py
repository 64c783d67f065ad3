"""The conformance suite of domains finds each fault and names it."""

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest

from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.gym.check import check_domain
from loomrl.gym.tasks import Domain, Draft, Kind, Rewards, Task

_COUNTER = count()


class Echo(Domain):
    """A domain without fault: say a number again."""

    name = "echo"
    weights = {"said": 1.0}
    kinds = {"number": Kind(0, lambda rng, level: Draft("Say 1000 less 1", "999", ["1", "1001"]))}
    prompt_bytes = 32

    def verify(self, task: Task, answer: str) -> Rewards:
        return {"said": float(answer == task.right)}


def faulty(**changes: object) -> Domain:
    return type("Faulty", (Echo,), changes)()


def makes(make: Callable[[], Draft]) -> dict[str, Kind]:
    return {"made": Kind(0, lambda rng, level: make())}


def test_a_domain_without_fault_has_no_findings() -> None:
    assert check_domain(Echo()) == []


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"weights": {"said": 0.5}}, {"weights"}),
        ({"verify": lambda self, task, answer: {"said": 0.0}}, {"right"}),
        ({"verify": lambda self, task, answer: {"said": 1.0}}, {"wrong", "attacks"}),
        ({"verify": lambda self, task, answer: {"said": float(task.right in answer)}}, {"attacks"}),
        ({"verify": lambda self, task, answer: {"said": float(answer.strip().isdigit())}}, {"wrong", "attacks"}),
        ({"kinds": makes(lambda: Draft("?", "999", ["1", "1"]))}, {"wrong_differ", "choices"}),
        ({"kinds": makes(lambda: Draft("?", "999", []))}, {"choices"}),
        ({"kinds": makes(lambda: Draft(f"? {next(_COUNTER)}", "999", ["1"]))}, {"seed"}),
        ({"prompt_bytes": 4}, {"prompt_bytes"}),
        ({"answer_bytes": 2}, {"answer_bytes"}),
        ({"choice_bytes": 2}, {"choice_bytes"}),
    ],
)
def test_each_fault_is_named(changes: dict[str, object], names: set[str]) -> None:
    findings = check_domain(faulty(**changes))
    assert {finding.name for finding in findings} == names
    assert all(finding.severity == "error" and finding.fix for finding in findings)


def breaks(error: Exception | None) -> Draft:
    if error is not None:
        raise error
    return None  # type: ignore[return-value]


@pytest.mark.parametrize(("error", "said"), [(KeyError("lion"), r"KeyError\('lion'\)"), (None, "AttributeError")])
def test_a_kind_that_breaks_is_named_with_level_and_seed(error: Exception | None, said: str) -> None:
    domain = faulty(kinds=makes(lambda: breaks(error)))
    with pytest.raises(EnvironmentFault, match=rf"echo: .*kind 'made', level 3, broke: {said}.* seeded with 17;"):
        domain.generate(np.random.default_rng(17), 3)


def test_a_kind_that_says_what_to_do_is_left_to_say_it() -> None:
    with pytest.raises(ConfigError, match="^install the sandbox$"):
        faulty(kinds=makes(lambda: breaks(ConfigError("install the sandbox")))).generate(np.random.default_rng(0), 0)
