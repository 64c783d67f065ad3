"""`loomrl verify`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from loomrl.cli.output import AsJson, print_json


def register(app: typer.Typer) -> None:
    """Add the command to the top level."""
    app.command("verify")(verify)


def verify(
    onnx: Annotated[Path, typer.Option("--onnx", help="The network.")],
    prop: Annotated[Path, typer.Option("--property", help="What must not happen, in VNN-LIB 1.0.")],
    timeout: Annotated[float, typer.Option(min=1, help="Seconds, from reading on.")] = 60.0,
    output: Annotated[str | None, typer.Option(help="The graph's output Y is about; its first, if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Does some input of a region break a property? Prints sat with that input, unsat, unknown or timeout."""
    from loomrl.safety.certified.verify import verify as ask

    answer = ask(onnx, prop, timeout, output)
    if as_json:
        _print_answer(answer)
        return
    typer.echo(answer.verdict.value)
    if answer.inputs is not None and answer.outputs is not None:
        values = [f"(X_{index} {value!r})" for index, value in enumerate(answer.inputs.tolist())]
        values += [f"(Y_{index} {value!r})" for index, value in enumerate(answer.outputs.tolist())]
        typer.echo("(" + "\n ".join(values) + ")")


def _print_answer(answer: Any) -> None:
    document = {
        "verdict": answer.verdict.value,
        "seconds": round(answer.seconds, 3),
        "num_boxes": answer.num_boxes,
        "decided_by": answer.decided_by,
        "inputs": None if answer.inputs is None else answer.inputs.tolist(),
        "outputs": None if answer.outputs is None else answer.outputs.tolist(),
    }
    print_json(document)
