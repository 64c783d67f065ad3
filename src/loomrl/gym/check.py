"""The conformance suite of domains: tells an author what is wrong with tasks and verifier, in sentences.

That the environment over a domain conforms is for `loomrl.environment.check`.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from loomrl.environment.check import Finding
from loomrl.gym.attacks import general_attacks
from loomrl.gym.tasks import Domain, Task

_LEVELS = (0, 3, 5)
_ALMOST = 1e-9


def check_domain(domain: Domain, levels: Sequence[int] = _LEVELS) -> list[Finding]:
    """Find what is wrong with a domain, by a task of each kind at each of some levels; an empty list means it conforms.

    Each fault is reported once, with the first task that shows it. What the domain itself raises is passed on.
    """
    found: dict[str, Finding] = {}
    if abs(sum(domain.weights.values()) - 1.0) > _ALMOST:
        problem = f"The weights of {domain.name} sum to {sum(domain.weights.values()):g}."
        found["weights"] = _error("weights", problem, "Let `weights` sum to 1, so that a right answer earns 1.")
    for seed, (level, kind) in enumerate((level, kind) for level in levels for kind in domain.kinds):
        task = domain.generate(np.random.default_rng(seed), level, [kind])
        again = domain.generate(np.random.default_rng(seed), level, [kind])
        if task.to_bytes() != again.to_bytes():
            problem = f"One seed gives two tasks of kind {kind}, level {level}."
            found.setdefault("seed", _error("seed", problem, "Draw every number from `rng`, and iterate over no set."))
        for finding in (finding for check in _CHECKS for finding in check(domain, task)):
            found.setdefault(finding.name, finding)
    return list(found.values())


def _error(name: str, problem: str, fix: str) -> Finding:
    return Finding(name=name, severity="error", problem=problem, fix=fix)


def _named(task: Task) -> str:
    return f"{task.kind}, level {task.difficulty}, {task.prompt[:80]!r}"


def _check_right(domain: Domain, task: Task) -> Iterator[Finding]:
    score = domain.score(task, task.right)
    if not score.solved:
        problem = f"The right answer earns {score.total:g} ({score.rewards}): {_named(task)}."
        fix = "Let `verify` give the draft's `right` every component in full that is not in `optional_components`."
        yield _error("right", problem, fix)


def _check_wrong(domain: Domain, task: Task) -> Iterator[Finding]:
    if len({task.right, *task.wrong}) != 1 + len(task.wrong):
        yield _error("wrong_differ", f"Two answers are the same: {_named(task)}.", "Let the draft's answers differ.")
    for answer in task.wrong:
        if domain.score(task, answer).total > 0.0:
            problem = f"The wrong answer {answer[:80]!r} earns a reward: {_named(task)}."
            yield _error("wrong", problem, "Give nothing for it, or take it out of the draft's `wrong`.")


def _check_attacks(domain: Domain, task: Task) -> Iterator[Finding]:
    for answer in general_attacks(domain, task):
        if domain.score(task, answer).total > 0.0:
            problem = f"The answer {answer[:80]!r} earns a reward: {_named(task)}, right is {task.right[:80]!r}."
            yield _error("attacks", problem, "Compare whole answers, and give nothing for what is not one.")


def _check_sizes(domain: Domain, task: Task) -> Iterator[Finding]:
    episode = domain.begin(task)
    offered = episode.choices(np.random.default_rng(0))
    episode.close()
    limits = {
        "prompt_bytes": ([task.prompt], domain.prompt_bytes),
        "answer_bytes": (domain.messages(task, task.right), domain.answer_bytes),
        "choice_bytes": (offered, domain.choice_bytes),
    }
    for name, (texts, limit) in limits.items():
        longest = max(len(text.encode()) for text in texts)
        if longest > limit:
            yield _error(name, f"A text has {longest} bytes, {name} is {limit}: {_named(task)}.", f"Raise `{name}`.")
    if not 2 <= len(offered) <= domain.num_choices or len(set(offered)) != len(offered):
        problem = f"{len(offered)} choices are offered, {len(set(offered))} of them different: {_named(task)}."
        yield _error("choices", problem, f"Offer from 2 to num_choices ({domain.num_choices}) different messages.")


_CHECKS: tuple[Callable[[Domain, Task], Iterator[Finding]], ...] = (
    _check_right,
    _check_wrong,
    _check_attacks,
    _check_sizes,
)
