"""A second opinion: the model checker Storm (Hensel et al., arXiv 2002.07080), in a process of its own.

    python -m loomrl.safety.model_checking.storm < QUESTIONS

reads and prints JSON: [[model, [property, ...], {constant: value}], ...] and a list of answers for each, values at the
initial state in exact arithmetic, or whether a property holds there.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loomrl.errors import ConfigError, ServiceError

Question = tuple[Path, Sequence[str], Mapping[str, Any]]


def ask_all(questions: Sequence[Question], timeout_seconds: float = 600.0) -> list[list[Any]]:
    """Storm's answers about models: for each a list of numbers and booleans, one for each of its properties.

    A question is a model's file, its properties and the values of its constants. `timeout_seconds` is for all together.

    Raises:
        ConfigError: when Storm is not installed.
        ServiceError: when it fails, or takes too long.
    """
    asked = json.dumps([[str(model), list(props), dict(constants)] for model, props, constants in questions])
    command = [sys.executable, "-m", __name__]
    try:
        found = subprocess.run(
            command, input=asked, capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        raise ServiceError(f"Storm had no answer after {timeout_seconds:g} s; ask less, or about less") from None
    if found.returncode == ConfigError.exit_code:
        raise ConfigError(found.stderr.strip())
    if found.returncode:
        detail = (found.stderr.strip() or "no message").splitlines()[-1]
        raise ServiceError(f"Storm ended with {found.returncode}: {detail}")
    answers: list[list[Any]] = json.loads(found.stdout.splitlines()[-1])
    return answers


def _answers(model: str, props: list[str], constants: dict[str, Any]) -> list[Any]:
    import stormpy

    program = stormpy.parse_prism_program(model)
    properties = stormpy.parse_properties(";".join(props), program)
    if constants:
        program, properties = stormpy.instantiate_constants(program, constants, properties)
    built = stormpy.build_model[stormpy.Rational](program, properties)
    values = []
    for prop in properties:
        found = stormpy.model_checking(built, prop, environment=stormpy.environments.exact())
        value = found.get_value(built.initial_states[0])
        values.append(value if isinstance(value, bool) else float(value))
    return values


def main() -> None:
    """Answer the questions on standard input with Storm, and print the answers as one line of JSON.

    An error ends the process, with its text on standard error: with 2 where Storm is not installed, 3 where it fails.
    """
    answers = []
    for model, props, constants in json.load(sys.stdin):
        try:
            answers.append(_answers(model, props, constants))
        except ModuleNotFoundError:
            print("Storm is not installed; pip install 'loomrl[storm]'", file=sys.stderr)
            sys.exit(ConfigError.exit_code)
        except Exception as error:  # noqa: BLE001 - Storm's errors have no class in common
            print(f"{Path(model).name}: {' '.join(str(error).split())}", file=sys.stderr)
            sys.exit(ServiceError.exit_code)
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main()
