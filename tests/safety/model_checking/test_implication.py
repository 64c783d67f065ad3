"""What is said to follow does: on chains and formulas at random, against the checker that decides each by itself."""

from typing import Any

import numpy as np
import pytest

from loomrl.environment.finite.model import Chain, FiniteModel, States
from loomrl.environment.finite.prism.syntax import read_property
from loomrl.safety.model_checking.implication import Requirement
from loomrl.safety.model_checking.pctl import check

NUM_STATES, NUM_ACTIONS = 5, 2
NUM_MODELS, NUM_FORMULAS, NUM_CHAINS = 6, 40, 12


def a_model(rng: np.random.Generator) -> FiniteModel:
    """Each choice leads to two states; one reward is never negative, the other may be."""
    num_choices = NUM_STATES * NUM_ACTIONS
    first = rng.integers(NUM_STATES, size=num_choices)
    second = (first + rng.integers(1, NUM_STATES, size=num_choices)) % NUM_STATES
    shares = rng.choice([0.1, 0.5, 0.8], num_choices)
    initial = np.zeros(NUM_STATES)
    initial[rng.choice(NUM_STATES, rng.integers(1, 3), replace=False)] = 1.0
    labels = {name: rng.random(NUM_STATES) < 0.4 for name in ("a", "b")}
    states = States(
        ("s",),
        np.arange(NUM_STATES)[:, None],
        frozenset(),
        initial / initial.sum(),
        labels,
        {"n": int(rng.integers(4))},
    )
    return FiniteModel(
        states=states,
        choice_start=np.arange(0, num_choices + 1, NUM_ACTIONS),
        row_start=np.arange(0, 2 * num_choices + 1, 2),
        columns=np.column_stack([first, second]).ravel(),
        probabilities=np.column_stack([shares, 1.0 - shares]).ravel(),
        actions=np.tile(np.arange(NUM_ACTIONS), NUM_STATES),
        action_names=("left", "right"),
        rewards={"cost": rng.random(num_choices), "gain": rng.normal(size=num_choices)},
    )


def condition(rng: np.random.Generator, depth: int) -> str:
    """Of states; P stands in some."""
    kind = rng.integers(8 if depth else 4)
    if kind < 4:
        return str(rng.choice(['"a"', '"b"', f"s<{rng.integers(1, 5)}", f"s={rng.integers(5)}", "true"]))
    if kind == 4:
        inner = limited(rng, 0), limited(rng, 0)
        return f"!({inner[0]} {rng.choice(['&', '|', '=>', '<=>'])} {inner[1]})"
    if kind == 5:
        return limited(rng, depth - 1)
    joint = rng.choice(["&", "|", "=>", "<=>"])
    return f"({condition(rng, depth - 1)} {joint} {condition(rng, depth - 1)})"


def limited(rng: np.random.Generator, depth: int) -> str:
    """A P or an R with a limit."""
    relation = rng.choice(["<=", "<", ">=", ">"])
    left, right = (condition(rng, depth) for _ in range(2))
    if rng.random() < 0.2:
        path = rng.choice([f"F {condition(rng, 0)}", f"C<={rng.integers(4)}"])
        name = rng.choice(["", '{"gain"}', '{"cost"}'])
        return f"R{name}{relation}{rng.choice([0.5, 1.0, 1.5])} [ {path} ]"
    steps = rng.choice(["", "<=n", "<=2", "<3", "<=1", "<=0"])
    until = rng.choice([f"{left} U{steps} {right}", f"{left} W {right}"])
    path = rng.choice([f"X {left}", until, f"F{steps} {left}", f"G{steps} {left}"])
    return f"P{relation}{rng.choice([0, 0.1, 0.5, 0.9, 1])} [ {path} ]"


def chains(model: FiniteModel, rng: np.random.Generator) -> list[Chain]:
    """Of policies at random."""
    first = np.arange(NUM_STATES) * NUM_ACTIONS
    return [model.chain(first + rng.integers(NUM_ACTIONS, size=NUM_STATES)) for _ in range(NUM_CHAINS)]


@pytest.mark.parametrize("seed", range(NUM_MODELS))
def test_no_policy_keeps_a_property_and_breaks_one_that_follows_from_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = a_model(rng)
    texts = [limited(rng, 1) if rng.random() < 0.5 else condition(rng, 2) for _ in range(NUM_FORMULAS)]
    texts += [f"({one}) {rng.choice(['&', '|'])} ({rng.choice(texts)})" for one in texts[:20]]
    read = [read_property(text) for text in texts]
    asked = [Requirement(model, one) for one in read]
    held: list[list[Any]] = [[check(chain, one).holds for one in read] for chain in chains(model, rng)]
    pairs = [(i, j) for i in range(len(read)) for j in range(len(read)) if i != j and asked[i].implies(asked[j])]
    assert len(pairs) > len(texts), "too few to say anything"
    assert all(one.implies(one) for one in asked)
    wrong = [(texts[i], texts[j]) for i, j in pairs for holds in held if holds[i] is True and holds[j] is False]
    assert wrong == []


def test_who_misses_what_lies_on_another_way_may_go_neither() -> None:
    """Two ways are apart where each passes through what ends the other, and not where one does."""
    model = a_model(np.random.default_rng(0))
    one, other, apart = (
        Requirement(model, read_property(text))
        for text in ("P>=0.9 [ F s=2 ]", "P<=0.1 [ s!=2 U s=4 ]", "P>=0.9 [ s!=4 U s=2 ]")
    )
    assert not one.implies(other)
    assert apart.implies(other)


@pytest.mark.parametrize(
    "form", ["P>=0.5 [ F {} ]", 'P>=0.5 [ "a" W {} ]', "({0} <=> {0})", '!(P<0.5 [ X "b" & {0} ])']
)
def test_what_stands_in_each_other_is_read_once(form: str) -> None:
    """Twenty deep: each part read twice would be read a million times."""
    text = 'P>=0.5 [ F "a" ]'
    for _ in range(12 if "{0} <=>" in form else 20):
        text = form.format(text)
    model = a_model(np.random.default_rng(0))
    one, other = Requirement(model, read_property(text)), Requirement(model, read_property(text))
    assert one.implies(other)
