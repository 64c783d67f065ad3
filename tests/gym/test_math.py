"""Math answers: equal values in other forms, working that holds or does not, formulas that would take for ever."""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from loomrl.gym.domains import get_domain
from loomrl.gym.domains.math import values
from loomrl.gym.domains.math.answers import MAX_STEPS
from loomrl.gym.domains.math.expressions import NotAFormula, parse
from loomrl.gym.domains.math.values import arithmetic, equal, points, value
from loomrl.gym.tasks import MAX_ANSWER_CHARACTERS, Draft, Task
from tests.support.gym_workings import workings

MATH = get_domain("math")


def task(right: str, form: str = "formula", solution: dict[str, str] | None = None, prompt: str = "?") -> Task:
    draft = Draft(prompt, right, (), {"form": form} | ({"solution": solution} if solution else {}))
    return Task("math", "made", 0, draft.prompt, draft.right, (), draft.facts)


LINEAR = task("4", "number", {"x": "4"}, "Solve for x: 2*x + 3 = 11")


def progression(asked: Task, *lines: str) -> float:
    """What lines of working above the right answer earn."""
    return MATH.score(asked, "\n".join([*lines, f"Answer: {asked.right}"])).rewards["logical_progression"]


def same(left: str, right: str) -> bool:
    return equal(parse(left), parse(right), points(left + "=" + right))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("2x + 3", "3+x*2"),
        ("(x+1)^2", "x**2 + 2*x + 1"),
        ("sin(x)^2 + cos(x)^2", "1"),
        ("2(x - 1)(x + 1)", "2x^2 - 2"),
        ("-x^2", "0 - x*x"),
        ("exp(2x)", "e^(2x)"),
        ("sqrt(12)", "2sqrt(3)"),
        ("ln(8)", "3*log(2)"),
        ("1/3 + 1/6", "0.5"),
        ("2^-1", "1/2"),
        ("2^3^2", "512"),
        ("9pi", "pi*3*3"),
        ("x*y - y*x", "0"),
    ],
)
def test_equal_formulas(left: str, right: str) -> None:
    assert same(left, right)
    assert same(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [("x", "y"), ("0.333333333333", "1/3"), ("abs(x)", "x"), ("sqrt(x^2)", "x"), ("x^2", "2^x"), ("pi", "22/7")],
)
def test_unequal_formulas(left: str, right: str) -> None:
    assert not same(left, right)


def test_no_formula_is_right_at_just_the_points_it_is_judged_at() -> None:
    """One that vanishes where another is judged."""
    (first, *_) = [point["x"] for point in points("2*x")]
    hidden = f"2*x+(x-{arithmetic().nstr(first, 18)})"
    assert MATH.score(task("2*x"), "2*x").total == pytest.approx(1.0)
    assert MATH.score(task("2*x"), hidden).total == 0.0
    assert points("2*x") != points("2*x ")
    assert all(0 < abs(value) < 3 for point in points("x") for value in point.values())


@pytest.mark.parametrize(
    "text",
    [
        "", "+", "2 +", "(", "x)", "()", "2 3", "x y z", "1.2.3", ".5", "1e5", "x!", "x = 2", "sin", "sin x",
        "__import__", "os.system", "x if x else y", "٣", "²", "x;y", "{1}", "[1]", "'1'", "1" * 21, "x" * 201,
        "(" * 60 + "x" + ")" * 60, "-" * 60 + "1",
    ],
)  # fmt: skip
def test_what_is_no_formula(text: str) -> None:
    with pytest.raises(NotAFormula):
        parse(text)


@pytest.mark.parametrize(
    "text", ["9^9^9", "exp(exp(exp(9)))", "1/0", "log(0)", "10^-64", "exp(-exp(9))", "0^-1", "tan(pi/2)", "2^65", "x"]
)
def test_what_is_not_computed(text: str) -> None:
    with pytest.raises(NotAFormula):
        value(parse(text), {})


def test_working_that_holds_earns_its_part() -> None:
    full = MATH.score(LINEAR, "2x + 3 = 11\n2x = 8\nx = 8/2 = 4\nAnswer: 4")
    assert full.rewards == {"correctness": 1.0, "logical_progression": 1.0, "final_accuracy": 1.0}
    assert progression(LINEAR, "2x = 9", "x = 8/2") == 0.5
    assert progression(LINEAR, "11 - 3 = 8", "8/2 = 4") == 1.0
    assert progression(LINEAR, "I think") == 0.0
    assert MATH.score(LINEAR, "2x = 8\nAnswer: 5").total == 0.0


@pytest.mark.parametrize(
    "working",
    [
        "",
        "4 = 4\n",
        "x = 4\n",
        "x = x = 4\n",
        "2x = 2x\n",
        "1 + 1 = 2\n",
        "4\n",
        "2x = 9\n",
        "therefore\n",
        "4 = -(-4)\n",
        "4 + 0 = 4\n",
        "0 + 4 = 4\n",
        "1*4 = 4/1\n",
        "x = 4 - 0\n",
        "2x + 3 = 11\n",
        "11 = 3 + x*2\n",
        "x + x = 2*x\n",
        "x*0 = 0\n",
        "abs(x) = x\n",
        "3*x = 2*x + x\n",
        "sqrt((3*x)^2) = 2*x + x\n",
        "2x = 2*4\n",
        "x + 3 = 4 + 3\n",
        "x - 4 = 0\n",
        "3*4 - 2*4 = 4\n",
        "4*11/11 = 4\n",
        "4 + 3*0 = 4\n",
        "11 - 11 + 10 - 6 = 4\n",
        "34 - 30 = 4\n",
        "(17 - 9)/2 = 4\n",
        "x = 68/17\n",
        "x + 17 = 21\n",
    ],
)
def test_what_is_no_working_earns_no_logical_progression(working: str) -> None:
    score = MATH.score(LINEAR, f"{working}Answer: 4")
    assert score.rewards == {"correctness": 1.0, "logical_progression": 0.0, "final_accuracy": 1.0}
    assert score.solved


@pytest.mark.parametrize("right", ["5/3", "-5/3", "3*x^2", "1/x", "2*x + 1", "sin(x)", "-(x + 1)"])
@pytest.mark.parametrize("dress", ["x = {}", "({0}) + 0 = {0}", "1*({0}) = {0}", "({0})**1 = {0}", "-(-({0})) = {0}"])
def test_an_answer_that_is_written_as_an_equation_is_no_working(right: str, dress: str) -> None:
    """Whatever operators stand in it."""
    asked = task(right, "number" if "x" not in right else "formula", {} if "x" in right else {"x": right})
    score = MATH.score(asked, f"{dress.format(right)}\nAnswer: {right}")
    assert score.rewards == {"correctness": 1.0, "logical_progression": 0.0, "final_accuracy": 1.0}


FIXED = [
    "1 + 1 = 2", "2*2 = 4", "x + x = 2*x", "x - x = 0", "x*0 = 0", "x/x = 1", "(x + 1)^2 = x^2 + 2*x + 1",
    "5 + x = x + 5", "2*({0})/2 = {0}", "({0}) + 1 - 1 = {0}", "({0}) + 0*7 = {0}", "({0}) + ({0}) - ({0}) = {0}",
    "1*({0})^1 = {0}", "3*({0}) - 2*({0}) = {0}", "({0})^2/({0}) = {0}", "sqrt(({0})^2) = {0}", "({0})*x/x = {0}",
    "({0}) + (x - x) = {0}", "1/(1/({0})) = {0}", "({0})*sin(1)^2 + ({0})*cos(1)^2 = {0}", "x = ({0}) + 5 - 5",
    "2*x = 2*({0})", "x + 1 = ({0}) + 1", "x - ({0}) = 0", "7*x = ({0})*7",
    "({0}) + ({0}) = 2*({0})\n2*({0}) - ({0}) = {0}",
]  # fmt: skip


@pytest.mark.parametrize("kind", MATH.kinds)
def test_no_fixed_line_is_working(kind: str) -> None:
    """Whatever is asked."""
    for level in (0, 9):
        drawn = MATH.generate(np.random.default_rng(level), level, [kind])
        for line in FIXED:
            assert progression(drawn, *line.format(drawn.right).split("\n")) == 0.0, (drawn.prompt, drawn.right, line)


def test_workings_of_all_kinds_earn() -> None:
    """Those whose numbers chance to cancel, or are the answer's own, are few: `6/7*5/6`, `-8/(-11)`."""
    found: dict[str, list[float]] = defaultdict(list)
    for kind in MATH.kinds:
        for level in (0, 3, 6, 9):
            drawn = MATH.generate(np.random.default_rng(100 + level), level, [kind])
            found[kind] += [progression(drawn, *lines.split("\n")) for lines in workings(drawn)]
    everything = [one for each in found.values() for one in each]
    assert len(everything) > 150
    assert np.mean(everything) > 0.95
    assert all(np.mean(each) >= 0.5 for each in found.values() if each)


@pytest.mark.parametrize(
    ("prompt", "right", "lines"),
    [
        ("A shop sells 4 boxes for 16. What is one?", "4", ["16/4 = 4"]),
        ("What is 25% of 80?", "20", ["25/100*80 = 20"]),
        ("What is 0.5 of 3 as a fraction?", "3/2", ["0.5*3 = 3/2"]),
        ("What is 1.5 + 2.25 as a fraction?", "15/4", ["1.5 + 2.25 = 3.75 = 15/4"]),
        ("What is 2/3 of 5/7?", "10/21", ["(2*5)/(3*7) = 10/21"]),
        ("What is the GCD of 48 and 36?", "12", ["48 - 36 = 12"]),
        ("What is the GCD of 28 and 63?", "7", ["28 = 2*2*7", "63 = 3*3*7", "63 - 2*28 = 7"]),
        ("What are 3 dozens and 7?", "43", ["3*12 = 36", "36 + 7 = 43"]),
        ("What is 8 - 8/2?", "4", ["8 - 8/2 = 8 - 4 = 4"]),
        ("Calculate 5 + 3 - 3.", "5", ["5 + 3 - 3 = 5"]),
    ],
)
def test_short_workings_earn(prompt: str, right: str, lines: list[str]) -> None:
    asked = task(right, "number", prompt=prompt)
    assert progression(asked, *lines) == 1.0
    assert progression(asked, f"({right}) + 9 - 9 = {right}") == 0.0


def test_an_equation_with_curves_may_be_factored() -> None:
    """Also into numbers that the task does not state, one of which is the answer."""
    quadratic = task("7", "number", {"x": "7"}, "What is the larger solution x of x^2 - 10*x + 21 = 0?")
    assert progression(quadratic, "(x - 3)*(x - 7) = 0") == 1.0
    assert progression(quadratic, "(x - 7)*(x - 13) = 0") == 0.0
    assert progression(quadratic, "x*(10 - x) = 21") == 1.0
    assert progression(quadratic, "21 + x^2 - 10x = 0") == 0.0  # the question


def test_a_number_follows_from_lines_before() -> None:
    asked = task("52", "number", prompt="Seven times 19, less 9 times 9?")
    assert progression(asked, "7*19 = 133", "9*9 = 81", "133 - 81 = 52") == 1.0
    assert progression(asked, "133 - 81 = 52") == 0.0
    assert progression(asked, "133 = 133*1", "133 - 81 = 52") == 0.0


def _padded(start: str, unit: str, characters: int) -> str:
    return start + unit * ((characters - len(start)) // len(unit))


CARRIED = _padded("(153)", "+86-86", 186)
LONG_ANSWERS = {
    "sums whose every part is the answer": [f"(153)={CARRIED}+{k}-{k}={CARRIED}+{k + 1}-{k}-1" for k in range(10, 55)],
    "divisions": [
        "=".join(_padded(f"153*{k + more}/{k + more}", "*86/86", 196) for more in (0, 1)) for k in range(1, 99, 2)
    ],
    "towers of powers": [_padded(f"{k}", "*x^x^x/x^x^x", 190) + f"={k}" for k in range(10, 58)],
    "complex powers": [_padded(f"{k}", "*(-x)^y/(-x)^y", 190) + f"={k}" for k in range(10, 58)],
    "many short sides": ["=".join(f"{200 + k}-{k + 47}" for k in range(2_000))],
}


@pytest.mark.parametrize("name", LONG_ANSWERS)
def test_no_answer_takes_long_to_judge(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too much to compute earns nothing; the answer below it is still right."""
    calls = Counter[str]()

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any) -> Any:
            calls[name] += 1
            if calls.total() > MAX_STEPS + 1:
                pytest.fail(f"judging one answer takes more than {MAX_STEPS} steps: {calls}")
            return function(*arguments)

        return count

    monkeypatch.setattr(values, "_apply", counted("operations", values._apply))
    monkeypatch.setattr(values.FormulaValues, "_compact", counted("formulas", values.FormulaValues._compact))
    answer = "\n".join([*LONG_ANSWERS[name], "Answer: 153"])
    assert len(answer) <= MAX_ANSWER_CHARACTERS
    score = MATH.score(task("153", "number", prompt="What is 86 + 67?"), answer)
    assert score.rewards == {"correctness": 1.0, "logical_progression": 0.0, "final_accuracy": 1.0}


def test_a_line_said_twice_counts_once() -> None:
    assert progression(LINEAR, "2x = 8", "2x = 8") == 0.5


def test_bare_answers_of_every_kind_solve_their_tasks_and_show_no_working() -> None:
    for seed, kind in enumerate(MATH.kinds):
        drawn = MATH.generate(np.random.default_rng(seed), 5, [kind])
        score = MATH.score(drawn, drawn.right)
        assert score.rewards["logical_progression"] == 0.0
        assert score.solved
        assert score.total == pytest.approx(1.0 if kind == "addition" else 0.8), kind


def test_the_form_of_the_answer_counts() -> None:
    half = task("1/2", "number")
    assert MATH.score(half, "1/2").solved
    assert MATH.score(half, "2/4").rewards == {"correctness": 1.0, "logical_progression": 0.0, "final_accuracy": 0.0}
    assert not MATH.score(half, "2/4").solved
    assert MATH.score(half, "0.5").total == 0.0
    assert MATH.score(half, "1/4 + 1/4").total == 0.0
    assert MATH.score(task("2*x"), "x+x+x+x+x+x-x-x-x-x").rewards["final_accuracy"] == 0.0
    assert MATH.score(task("x^2 - 1", "expanded"), "(x-1)*(x+1)").total == 0.0


@pytest.mark.parametrize("answer", ["7", "  answer:   7  \n\n", "x = 7", "Answer: 7.", "x=7", "7 "])
def test_an_answer_may_be_written_as_people_do(answer: str) -> None:
    assert MATH.score(task("7", "number"), answer).total == pytest.approx(1.0)


@pytest.mark.parametrize("answer", ["x = 7 = 8", "x = x = 7", "= 7", "z = 7", "7..", "x =", "x 7", "x = 7 or 8"])
def test_an_answer_may_not_be_written_otherwise(answer: str) -> None:
    assert MATH.score(task("7", "number"), answer).total == 0.0


def test_a_sum_that_all_can_check() -> None:
    rng = np.random.default_rng(0)
    for level in range(10):
        addition = MATH.generate(rng, level, ["addition"])
        left, right = addition.prompt.rstrip("=").split("+")
        assert int(left) + int(right) == int(addition.right)
        assert len(left) == len(right) == 1 + (level + 1) // 2


def test_fields_are_there() -> None:
    for kind in ("linear", "derivative", "integral", "circle", "variance", "dice", "gcd", "leg_counting"):
        assert kind in MATH.kinds
