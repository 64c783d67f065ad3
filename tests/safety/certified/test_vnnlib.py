"""VNN-LIB 1.0: what is read, and where a malformed file is at fault."""

from pathlib import Path

import numpy as np
import pytest

from loomrl.errors import ArtifactError
from loomrl.safety.certified.vnnlib import parse_property, read_property

DECLARED = "(declare-const X_0 Real)\n(declare-const X_1 Real)\n(declare-const Y_0 Real)\n(declare-const Y_1 Real)\n"
BOX = "(assert (<= X_0 1.5)) (assert (>= X_0 -0.5))\n(assert (>= X_1 2)) (assert (<= X_1 3e0))\n"


def test_a_box_and_a_limit() -> None:
    prop = parse_property(DECLARED + "; a comment\n" + BOX + "(assert (<= Y_0 Y_1))")
    (case,) = prop.cases
    assert (prop.num_inputs, prop.num_outputs) == (2, 2)
    assert (case.low.tolist(), case.high.tolist()) == ([-0.5, 2.0], [1.5, 3.0])
    assert (case.rows.tolist(), case.limits.tolist()) == ([[1.0, -1.0]], [0.0])


def test_disjunctions_of_outputs_become_cases() -> None:
    unsafe = "(assert (or (and (<= Y_0 Y_1) (>= Y_0 2.0)) (>= Y_1 (+ (* 3 Y_0) -1))))"
    one, other = parse_property(DECLARED + BOX + unsafe).cases
    assert (one.rows.tolist(), one.limits.tolist()) == ([[1.0, -1.0], [-1.0, 0.0]], [0.0, -2.0])
    assert (other.rows.tolist(), other.limits.tolist()) == ([[3.0, -1.0]], [1.0])


def test_disjunctions_of_inputs_and_outputs_multiply() -> None:
    either = "(assert (or (and (>= X_0 0) (<= X_0 1)) (and (>= X_0 5) (<= X_0 6))))"
    rest = "(assert (>= X_1 2)) (assert (<= X_1 3)) (assert (or (<= Y_0 0) (<= Y_1 0)))"
    cases = parse_property(DECLARED + either + rest).cases
    assert [(case.low[0], case.high[0], case.rows[0].tolist()) for case in cases] == [
        (0.0, 1.0, [1.0, 0.0]),
        (0.0, 1.0, [0.0, 1.0]),
        (5.0, 6.0, [1.0, 0.0]),
        (5.0, 6.0, [0.0, 1.0]),
    ]


def test_an_equation_is_two_limits_and_the_narrower_of_two_counts() -> None:
    (case,) = parse_property(DECLARED + BOX + "(assert (<= X_0 1.0)) (assert (= Y_0 4))").cases
    assert case.high[0] == 1.0
    assert (case.rows.tolist(), case.limits.tolist()) == ([[1.0, 0.0], [-1.0, 0.0]], [4.0, -4.0])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("(assert (<= X_0 1.0)", "line 5: this '(' is never closed"),
        (") ", "line 5: found ')' outside"),
        ("x", "line 5: found 'x' outside"),
        ("(check-sat)", "line 5: found 'check-sat'; use `declare-const` or `assert`"),
        ("(declare-const X_0 Real)", "line 5: X_0 was declared on line 1 already"),
        ("(declare-const Z_0 Real)", "line 5: a declaration reads"),
        ("(assert (<= X_7 1.0))", "line 5: X_7 is not declared"),
        ("(assert (<= X_0 one))", "line 5: 'one' is neither a number nor a variable"),
        ("(assert (<= X_0 1e999))", "line 5: 1e999 is not finite"),
        ("(assert (<= 1 2))", "line 5: the comparison holds no variable"),
        ("(assert (< X_0 1))", "line 5: '<' is strict"),
        ("(assert (xor X_0 1))", "line 5: found 'xor'"),
        ("(assert Y_0)", "line 5: found 'Y_0' where a formula"),
        ("(assert (<= (* Y_0 Y_1) 1))", "line 5: a product of two variables"),
        ("(assert (<= (+ X_0 X_1) 1))", "line 5: a limit is on one input"),
        ("(assert (<= X_0 Y_0))", "line 5: a limit is on one input"),
        ("(assert ((<=) X_0 1))", "line 5: this expression is not complete"),
        (BOX + "(assert (<= Y_0 0)) (assert (>= X_0 2))", "the limits on X_0 contradict each other: at least 2 and"),
        (BOX, "a case says nothing of the outputs"),
        ("(assert (<= X_0 1)) (assert (<= Y_0 1))", "X_0 needs a lower and an upper limit"),
        ("(declare-const X_5 Real)", "declare X_0, X_1, ... without a gap"),
        (2 * ("(assert (or (<= Y_0 0)" + " (<= Y_1 0)" * 101 + "))"), "the formula has 10404 cases; at most 10000"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(text: str, told: str) -> None:
    with pytest.raises(ArtifactError) as raised:
        parse_property(DECLARED + text, "a.vnnlib")
    assert told in str(raised.value)
    assert str(raised.value).startswith("a.vnnlib")


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="nowhere.vnnlib cannot be read"):
        read_property(tmp_path / "nowhere.vnnlib")
    (tmp_path / "bytes").write_bytes(bytes(range(128, 256)))
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_property(tmp_path / "bytes")


def test_numbers_are_kept_exactly() -> None:
    value = 0.1 + 0.2
    (case,) = parse_property(DECLARED + BOX + f"(assert (<= X_0 {value!r})) (assert (>= Y_0 1))").cases
    assert case.high[0] == value
    assert np.array_equal(case.rows, [[-1.0, 0.0]])


@pytest.mark.parametrize("empty", ["or", "and"])
def test_a_formula_of_nothing_is_named(empty: str) -> None:
    text = f"(declare-const X_0 Real)\n(declare-const Y_0 Real)\n(assert (>= X_0 0))\n(assert ({empty}))"
    with pytest.raises(ArtifactError, match=f"4.*this `{empty}` holds no formula"):
        parse_property(text)
