"""The same questions to Storm, which answers in exact arithmetic: its answer lies between our bounds."""

from pathlib import Path

import pytest

from loomrl.environment.finite.prism.explore import build_model
from loomrl.environment.finite.prism.syntax import read_program, read_property, written_out
from loomrl.environment.finite.written import prism_text
from loomrl.errors import ServiceError
from loomrl.safety.model_checking.pctl import check
from loomrl.safety.model_checking.storm import ask_all
from tests.support.prism_models import EXAMPLES


@pytest.fixture(scope="module")
def storm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Storm's answers to all examples, and to what we make of each: one process."""
    folder, questions = tmp_path_factory.mktemp("storm"), []
    for name, example in EXAMPLES.items():
        (folder / f"{name}.prism").write_text(example.text)
        questions.append((folder / f"{name}.prism", list(example.properties), example.constants))
    return dict(zip(EXAMPLES, ask_all(questions), strict=True))


@pytest.mark.parametrize("name", EXAMPLES)
def test_storm_agrees(storm: dict[str, list[float]], name: str) -> None:
    example = EXAMPLES[name]
    program = read_program(example.text)
    chain = build_model(program, example.constants).only_chain()
    for prop, exact in zip(example.properties, storm[name], strict=True):
        answer = check(chain, written_out(read_property(prop), program.formulas))
        assert answer.low is not None
        assert answer.high is not None
        slack = 4e-16 * abs(exact)  # of the exact number as the nearest double
        assert answer.low - slack <= exact <= answer.high + slack, (prop, answer, exact)
        assert answer.high - answer.low <= 1e-9 * max(1.0, exact)


def test_storm_reads_what_is_exported(tmp_path: Path) -> None:
    example = EXAMPLES["grid"]
    chain = build_model(read_program(example.text)).only_chain()
    path = tmp_path / "chain.prism"
    path.write_text(prism_text(chain))
    ((found,),) = ask_all([(path, [example.properties[0]], {})])
    answer = check(chain, read_property(example.properties[0]))
    assert answer.low is not None
    assert found == pytest.approx(answer.low, abs=1e-9)


def test_what_storm_cannot_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.prism"
    path.write_text("dtmc\nmodule m\n x : [0..1]\nendmodule\n")
    with pytest.raises(ServiceError, match=r"Storm .*broken\.prism"):
        ask_all([(path, ["P=? [ F x=1 ]"], {})])
