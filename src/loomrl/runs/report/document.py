"""What the report holds: everything `report.html` shows, as one document, `report.json`."""

from pydantic import Field

from loomrl.evaluation.data_gate import DataValidation
from loomrl.storage.run_record import RunRecord
from loomrl.system.schema import Document
from loomrl.types import (
    EnvironmentSnapshot,
    EvaluationReport,
    Json,
    ParityReport,
    PolicyManifest,
    SafetyCase,
    TrainingReport,
)

STAGES = {
    "environment": "immutable snapshot of the environment",
    "training": "policy weights and learning curves",
    "evaluation": "episodes on held-out seeds",
    "safety": "the Prism gate's safety case",
    "export": "policy.onnx, manifest, parity proof",
    "shadow": "challenger beside champion on the policy server",
    "promotion": "aliases moved, or a refusal with its reason",
}


class RunOutcome(Document):
    """What became of the run, in a word and a sentence. `tone` is good, bad, warn or info."""

    word: str
    tone: str
    sentence: str
    champion_before: str | None  # versions; None: there was none
    champion_after: str | None


class StageFacts(Document):
    """One row of the stage table; `status` is "not reached" where the run ended before."""

    number: int  # 1 to 7
    name: str
    purpose: str
    status: str
    seconds: float | None = None
    verdict: str = ""
    digest: str | None = None
    lock: Json | None = None  # the stage's entry in dvc.lock
    plugins: list[str] = Field(default_factory=list)  # packages of others that it ran, as plugin:NAME@SHA256
    missing_because: str | None = None  # why the stage's section of the report is empty


class Series(Document):
    """One measured quantity over training: a value for each number of environment steps."""

    label: str
    env_steps: list[int]
    values: list[float | None]  # None where the metric was not finite


class Curve(Document):
    """What one chart shows: related series on the same axes."""

    title: str
    explanation: str
    series: list[Series]
    reference: float | None = None  # drawn as a horizontal line ...
    reference_label: str = ""  # ... with this label


class Picture(Document):
    """A picture the page embeds: the stage that made it and what it is, without its bytes."""

    stage: str
    name: str  # of the file
    media_type: str
    sha256: str
    num_bytes: int


class ChainLink(Document):
    """Two digests that must be equal for the evidence to be about one policy."""

    statement: str
    expected: str
    found: str

    @property
    def holds(self) -> bool:
        """Whether the digest that was found is the expected one."""
        return self.expected == self.found


class Node(Document):
    """A thing in the lineage. `id` is `kind:name`, as LoomDB writes it."""

    id: str
    kind: str
    label: str
    detail: str = ""


class ReportEdge(Document):
    """`object` came to be from `subject`."""

    subject: str
    predicate: str
    object: str


class ReportLineage(Document):
    """Where a version comes from: things, and which came to be from which."""

    nodes: list[Node]
    edges: list[ReportEdge]


class RunReport(Document):
    """All facts about one run, copied when the report was written."""

    schema_version: int = 1
    written: str  # ISO 8601, UTC
    outcome: RunOutcome
    run: RunRecord
    stages: list[StageFacts]
    environment: EnvironmentSnapshot | None = None
    training: TrainingReport | None = None
    curves: list[Curve] = Field(default_factory=list)
    evaluation: EvaluationReport | None = None
    data_validation: DataValidation | None = None
    safety: SafetyCase | None = None
    manifest: PolicyManifest | None = None  # without the probe: that is part of the artifact, not of the evidence
    parity: ParityReport | None = None
    pictures: list[Picture] = Field(default_factory=list)
    chain: list[ChainLink] = Field(default_factory=list)
    lineage: ReportLineage
    digests: dict[str, str] = Field(default_factory=dict)  # what -> SHA-256
    versions: dict[str, str] = Field(default_factory=dict)  # distribution -> version
    files: dict[str, str] = Field(default_factory=dict)  # file in the run's folder -> SHA-256
