"""`loomrl engine`: the built-in inference engine's server."""

from pathlib import Path
from typing import Annotated

import typer

from loomrl.language.inference.settings import MIB, EngineSettings
from loomrl.system.http.options import DieWithParent, Host, MaxBodyMib, Port, PortFile, begin

app = typer.Typer(name="engine", help="Serve completions by a language policy.", no_args_is_help=True)
_DEFAULT = EngineSettings(policy=Path())


@app.callback()
def engine() -> None:
    """Environments ask an engine for completions, trainers hand it new weights."""


@app.command()
def serve(
    policy: Annotated[Path, typer.Option(help="A folder with a language policy, or a model of Hugging Face's.")],
    host: Host = _DEFAULT.host,
    port: Port = _DEFAULT.port,
    version: Annotated[int, typer.Option(min=0, help="Of that policy.")] = _DEFAULT.version,
    max_running: Annotated[int, typer.Option(min=1, help="Completions decoded at once.")] = _DEFAULT.max_running,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Completions that wait for their turn; more are answered 503, to come again.")
    ] = _DEFAULT.max_waiting,
    max_body_mib: MaxBodyMib = _DEFAULT.max_body_bytes // MIB,
    max_prompt_mib: Annotated[int, typer.Option(min=1, help="Of one request for completions, unpacked.")] = (
        _DEFAULT.max_prompt_bytes // MIB
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of completions that have no seed of their own.")] = _DEFAULT.seed,
    die_with_parent: DieWithParent = None,
    port_file: PortFile = None,
) -> None:
    """Serve the shapes of vLLM, SGLang and OpenAI; see docs/trajectory-api.md."""
    from loomrl.language.inference.server import serve as run

    begin(die_with_parent)
    run(
        EngineSettings(
            policy=policy,
            host=host,
            port=port,
            version=version,
            max_running=max_running,
            max_waiting=max_waiting,
            max_body_bytes=max_body_mib * MIB,
            max_prompt_bytes=max_prompt_mib * MIB,
            seed=seed,
        ),
        port_file,
    )


@app.command()
def tokenizer(
    policy: Annotated[Path, typer.Option(help="A folder that a language policy was saved in.")],
    folder: Annotated[Path, typer.Argument(help="Gets tokenizer.json and tokenizer_config.json.")],
) -> None:
    """Write a policy's tokenizer for Hugging Face's AutoTokenizer, which Atropos environments use."""
    from loomrl.language.inference.hf_tokenizer import write_tokenizer
    from loomrl.language.policies.policy import LanguagePolicy

    read = LanguagePolicy.load(policy)
    write_tokenizer(read.tokenizer, folder, read.model.config.max_tokens)
    typer.echo(f"{folder}: pass it as tokenizer_name")
