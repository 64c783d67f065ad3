"""`loomrl engine`: the built-in inference engine's server."""

from pathlib import Path
from typing import Annotated, Any

import typer

from loomrl.language.inference.settings import MIB, EngineSettings
from loomrl.system.http.options import DieWithParent, MaxBodyMib, PortFile, begin, with_settings

app = typer.Typer(name="engine", help="Serve completions by a language policy.", no_args_is_help=True)
_DEFAULT = EngineSettings(policy=Path())


@app.callback()
def engine() -> None:
    """Environments ask an engine for completions, trainers hand it new weights."""


@app.command()
@with_settings(EngineSettings)
def serve(
    max_body_mib: MaxBodyMib = _DEFAULT.max_body_bytes // MIB,
    max_prompt_mib: Annotated[int, typer.Option(min=1, help="Of one request for completions, unpacked.")] = (
        _DEFAULT.max_prompt_bytes // MIB
    ),
    die_with_parent: DieWithParent = None,
    port_file: PortFile = None,
    **settings: Any,
) -> None:
    """Serve the shapes of vLLM, SGLang and OpenAI; see docs/trajectory-api.md."""
    from loomrl.language.inference.server import serve as run

    begin(die_with_parent)
    chosen = EngineSettings(**settings, max_body_bytes=max_body_mib * MIB, max_prompt_bytes=max_prompt_mib * MIB)
    run(chosen, port_file)


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
