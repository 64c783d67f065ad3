"""Stages 1-5 as DVC runs them: `python -m loomrl.runs.stages NAME POLICY`.

Each module names the stages it reads (`INPUTS`) and has `run(config, folders)`: a deterministic function that reads
only its declared inputs and writes only its own folder.
"""

from dataclasses import dataclass
from pathlib import Path

CODE = "code"  # runs before them: which files of LoomRL each of them runs for the policy
ORDER = ("environment", "training", "evaluation", "safety", "export")


@dataclass(frozen=True)
class Folders:
    """Where the stages of one policy leave their outputs: `artifacts/POLICY/STAGE`."""

    project: Path
    policy: str

    @property
    def root(self) -> Path:
        """The folder of all this policy's artifacts, `artifacts/POLICY`; it need not be there."""
        return self.project / "artifacts" / self.policy

    def __getitem__(self, stage: str) -> Path:
        return self.root / stage
