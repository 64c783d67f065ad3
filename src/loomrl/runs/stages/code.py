"""config -> for each stage, the files of LoomRL that it runs for this policy, with their digests.

The other stages depend on these documents and not on the sources: a file that a policy does not use changes none of
them. DVC runs this one always; equal documents let it leave the others as they are.
"""

from loomrl.environment.sources.stage_code import STAGES, stage_code
from loomrl.runs.config import PolicyConfig
from loomrl.runs.stages import CODE, Folders
from loomrl.system.files import canonical_json, write_atomic

INPUTS: tuple[str, ...] = ()


def run(config: PolicyConfig, folders: Folders) -> None:
    """Write for each other stage `STAGE.json` into the folder of this one: path below `loomrl/` -> SHA-256.

    Raises:
        ArtifactError: when one cannot be written.
    """
    for stage in STAGES:
        write_atomic(folders[CODE] / f"{stage}.json", document(stage, config))


def is_current(stage: str, config: PolicyConfig, folders: Folders) -> bool:
    """Whether the document that `run` wrote for a stage is there and says what the stage's code is now."""
    path = folders[CODE] / f"{stage}.json"
    return path.is_file() and path.read_bytes() == document(stage, config)


def document(stage: str, config: PolicyConfig) -> bytes:
    """The document of a stage as canonical JSON: path below `loomrl/` of each file it runs for the policy ->
    SHA-256."""
    return canonical_json(stage_code(stage, config.training.algorithm))
