"""Models in the PRISM language: their states, probabilities and rewards, and what is wrong with a text."""

import numpy as np
import pytest

from loomrl.environment.finite.model import FiniteModel
from loomrl.environment.finite.prism.explore import build_model
from loomrl.environment.finite.prism.syntax import read_program, read_property
from loomrl.errors import ConfigError
from tests.support.prism_models import DIE, EXAMPLES, GAMBLER


def built(text: str, **constants: object) -> FiniteModel:
    return build_model(read_program(text), constants)


def matrix(model: FiniteModel) -> np.ndarray:
    """(C, S)"""
    dense = np.zeros((model.num_choices, len(model.states)))
    owner = np.repeat(np.arange(model.num_choices), np.diff(model.row_start))
    dense[owner, model.columns] = model.probabilities
    return dense


def test_states_are_numbered_as_they_are_found() -> None:
    model = built(DIE)
    assert [model.states.describe(index)["s"] for index in range(8)] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert len(model.states) == 13
    assert model.states.labels["done"].sum() == 6
    assert matrix(model)[3].tolist()[1] == 0.5
    assert matrix(model).sum(axis=1).tolist() == [1.0] * 13
    assert model.rewards["flips"].tolist() == [1.0] * 7 + [0.0] * 6


def test_modules_step_together_on_a_common_action_and_alone_without_one() -> None:
    model = built("""
        mdp
        module a
          x : [0..2];
          [go] x<2 -> 0.25 : (x'=x+1) + 0.75 : true;
          [] x=0 -> (x'=2);
        endmodule
        module b
          y : bool;
          [go] !y -> 0.5 : (y'=true) + 0.5 : true;
        endmodule
    """)
    first = slice(model.choice_start[0], model.choice_start[1])
    assert [model.action_names[action] for action in model.actions[first]] == ["", "go"]
    after = {
        tuple(model.states.values[column]): share
        for column, share in zip(
            model.columns[model.row_start[1] : model.row_start[2]],
            model.probabilities[model.row_start[1] : model.row_start[2]],
            strict=True,
        )
    }
    assert after == {(0, 0): 0.375, (0, 1): 0.375, (1, 0): 0.125, (1, 1): 0.125}


def test_commands_that_overlap_are_equally_likely_in_a_chain_and_choices_in_a_process() -> None:
    text = "dtmc module m x : [0..2]; [a] x=0 -> (x'=1); [b] x<=0 -> 0.5 : (x'=1) + 0.5 : (x'=2); endmodule"
    assert matrix(built(text))[0].tolist() == [0.0, 0.75, 0.25]
    assert matrix(built(text.replace("dtmc", "mdp")))[:2].tolist() == [[0.0, 1.0, 0.0], [0.0, 0.5, 0.5]]


def test_a_state_without_a_command_stays_and_is_labelled() -> None:
    model = built(EXAMPLES["stuck"].text)
    assert model.states.labels["deadlock"].tolist() == [bool(value == 2) for value in model.states.column("x")]
    assert matrix(model)[2].tolist() == [0.0, 0.0, 1.0]


def test_what_an_action_earns_is_weighted_in_a_chain() -> None:
    model = built(EXAMPLES["overlapping"].text)
    assert model.rewards[""][0] == 0.5 * 2 + 0.5 * 1


def test_constants_are_computed_from_others_and_given() -> None:
    declared = "const int N = 2*M; const int M; const bool go = M>1;"
    text = f"dtmc {declared} module m x : [0..N]; [] go & x<N -> (x'=x+1); endmodule"
    assert len(built(text, M=3).states) == 7
    assert len(built(text, M=1).states) == 1


def test_variables_of_more_than_64_bits() -> None:
    bits = "\n".join(f"x{index} : [0..1000000];" for index in range(5))
    model = built(
        f"dtmc module m {bits} [] x4<300 -> 0.5 : (x0'=1000000-x4) & (x4'=x4+1) + 0.5 : (x4'=x4+1); endmodule"
    )
    assert len(model.states) == sum(steps + 1 for steps in range(301))
    assert {tuple(row) for row in model.states.values.tolist()} >= {(1000000, 0, 0, 0, 1), (0, 0, 0, 0, 1)}
    assert len({tuple(row) for row in model.states.values.tolist()}) == len(model.states)


def test_more_states_than_are_expanded_at_once() -> None:
    model = built(
        "dtmc module m x : [0..399]; y : [0..399]; [] true -> 0.5:(x'=mod(x+1,400)) + 0.5:(y'=mod(y+x,400)); endmodule"
    )
    assert len(model.states) == 160_000
    assert matrix_rows_sum_to_one(model)
    x, y = model.states.column("x"), model.states.column("y")
    moved = model.columns[model.row_start[:-1]], model.columns[model.row_start[1:] - 1]
    expected = {((a + 1) % 400, b) for a, b in zip(x[:50].tolist(), y[:50].tolist(), strict=True)}
    found = {(int(x[one]), int(y[one])) for column in moved for one in column[:50]}
    assert expected <= found


def matrix_rows_sum_to_one(model: FiniteModel) -> bool:
    return bool(np.allclose(np.add.reduceat(model.probabilities, model.row_start[:-1]), 1.0, atol=1e-15))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ctmc\nmodule m x : bool; endmodule", r"model: ctmc is a continuous-time chain"),
        ("dtmc\nmodule m\n x : [0..1]\nendmodule", r"model:4:1: not understood: 'endmodule'; expected .*';'"),
        ("dtmc\nmodule m x : [0..1];", "model: ends too early; expected"),
        ("dtmc\nmodule m x : [0..1]; [] x=0 -> 0.5:(x'=1);\nendmodule", r"line 2: probabilities sum to 0.5 in \(x=0\)"),
        ("dtmc\nmodule m x : [0..1];\n [] true -> (x'=x+1); endmodule", r"line 3: 'x' becomes 2, outside \[0..1\]"),
        ("dtmc module m x : [0..1]; [] true -> -1:(x'=0)+2:(x'=1); endmodule", "a probability is -1"),
        ("dtmc module m x : [0..1]; [] true -> (y'=1); endmodule", "'y' is assigned and is no variable"),
        ("dtmc module m x : [0..1]; [] z=0 -> (x'=1); endmodule", "'z' is not known; names: x"),
        ("dtmc module m x : [0..1]; [] x -> (x'=1); endmodule", "the guard is a number"),
        ("dtmc module m x : [0..1]; [] x=true -> (x'=1); endmodule", "compares a boolean with a number"),
        ("dtmc module m x : [0..1]; [] true -> (x'=x/2); endmodule", "'x' is assigned a value of another type"),
        ("dtmc module m x : [3..1]; [] true -> true; endmodule", "'x' has the empty range"),
        ("dtmc module m x : [0..1] init 4; [] true -> true; endmodule", "'x' starts with 4, outside its range"),
        ("dtmc const int N; module m x : [0..N]; [] true -> true; endmodule", "constant 'N' has no value; give one"),
        ("dtmc const int N = M; const int M = N; module m x : [0..N]; endmodule", "is defined by itself"),
        ("dtmc formula f = g; formula g = f; module m x : bool; [] f -> true; endmodule", "is defined by itself"),
        ("dtmc module m x : bool; endmodule module m y : bool; endmodule", "module 'm' is defined twice"),
        ("dtmc module m x : bool; endmodule module n x : bool; endmodule", "variable 'x' is defined twice"),
        ("dtmc module n = m [x=y] endmodule", "module 'n' copies 'm', which is not defined before it"),
        ("dtmc module m x : bool; endmodule module n = m [] endmodule", "not understood"),
        ("dtmc module m x : bool; endmodule module n = m [z=y] endmodule", "gives 'x' of 'm' no new name"),
        ("dtmc", "the model has no variables"),
        ("dtmc module m x : bool; [] true -> (x'=true)&(x'=false); endmodule", "'x' is assigned twice"),
        ('dtmc module m x : bool; [] true -> true; endmodule label "l" = 3;', 'label "l" is a number'),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        built(text)


def test_too_many_states_are_refused() -> None:
    with pytest.raises(ConfigError, match="more than 10 states can be reached"):
        build_model(read_program(GAMBLER), {"N": 100}, max_states=10)


def test_a_constant_that_is_not_there_or_has_another_type() -> None:
    with pytest.raises(ConfigError, match="there is no constant 'K'; constants: N, p"):
        built(GAMBLER, N=4, K=2)
    with pytest.raises(ConfigError, match=r"constant 'N' is 2\.5; a value of type int is needed"):
        built(GAMBLER, N=2.5)


@pytest.mark.parametrize("text", ["P=? [ F ]", "P<=0.1", "P=? [ x=1", "R{cost}=? [ F x=1 ]", "P=? [ S x=1 ]"])
def test_a_property_that_is_none_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"property .*: (ends too early|not understood)|property .*:1:\d+: not understood"
    ):
        read_property(text)
