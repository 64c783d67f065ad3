"""The page: templates and a stylesheet in, one self-contained HTML file out."""

import base64
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from loomrl.runs.config import PolicyConfig
from loomrl.runs.report import text
from loomrl.runs.report.charts import draw
from loomrl.runs.report.document import RunReport
from loomrl.runs.report.evidence import StageEvidence
from loomrl.runs.report.lineage import NODE_HEIGHT, NODE_WIDTH, lay_out
from loomrl.safety.case.tally import counts, tally
from loomrl.types import Claim, Json

TEMPLATES = Path(__file__).parent / "templates"
VERDICTS = {  # verdict -> tone
    "proved": "good",
    "statistically_supported": "good",
    "refuted": "bad",
    "undecided": "warn",
    "waived": "warn",
}
STATUSES = {  # stage status -> tone
    "ran": "good",
    "unchanged": "info",
    "restored": "info",
    "repeated": "info",
    "refused": "bad",
    "failed": "bad",
    "not reached": "none",
}


def render_page(report: RunReport, evidence: dict[str, StageEvidence]) -> str:
    """The report as HTML. Everything is inline: it needs no network, no JavaScript and no other file.

    `evidence` is by stage; the pictures are read from there.

    Raises:
        OSError: when a picture is gone.
    """
    charts = [draw(curve, *((1000, 300) if index == 0 else (340, 210))) for index, curve in enumerate(report.curves)]
    return (
        _templates()
        .get_template("report.html")
        .render(
            report=report,
            run=report.run,
            stage={stage.name: stage for stage in report.stages},
            charts=[(chart, curve) for chart, curve in zip(charts, report.curves, strict=True) if chart],
            lineage=lay_out(report.lineage),
            node_width=NODE_WIDTH,
            node_height=NODE_HEIGHT,
            picture=partial(_data_uri, report, evidence),
            config=_yaml(report.run.config),
            style=Markup((TEMPLATES / "style.css").read_text()),  # our own file, nothing from a run
        )
    )


def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("number", "percent", "duration", "latency", "moment", "words", "middle"):
        environment.filters[name] = getattr(text, name)
    environment.filters.update(shorten=_shorten, gravest_first=_gravest_first, tally=tally, counts=counts)
    environment.globals.update(verdict_tone=VERDICTS, status_tone=STATUSES)
    return environment


def _shorten(text: str) -> Markup:
    """Text in which SHA-256 digests are cut to twelve characters, each in full in its title."""
    pieces = re.split(r"\b([0-9a-f]{64})\b", text)
    digests = {index: Markup('<code class="hash" title="{0}">{1}…</code>') for index in range(1, len(pieces), 2)}
    return Markup("").join(
        digests[index].format(piece, piece[:12]) if index in digests else piece for index, piece in enumerate(pieces)
    )


def _gravest_first(claims: Sequence[Claim]) -> list[Claim]:
    """Refuted claims, then undecided and waived ones, then the rest in the order of the case."""
    order = ("refuted", "undecided", "waived")
    return sorted(claims, key=lambda claim: order.index(claim.verdict) if claim.verdict in order else len(order))


def _data_uri(report: RunReport, evidence: dict[str, StageEvidence], name: str | None) -> str | None:
    """A picture of the report as a `data:` URI; None where there is no such picture."""
    for picture in report.pictures:
        folder = evidence[picture.stage].folder
        if picture.name == name and folder is not None:
            data = base64.b64encode((folder / picture.name).read_bytes()).decode()
            return f"data:{picture.media_type};base64,{data}"
    return None


def _yaml(config: Json) -> str:
    """The config as YAML, its sections in the order of a config file."""
    import yaml

    ordered = {name: config[name] for name in PolicyConfig.model_fields if name in config}
    return yaml.safe_dump(ordered | config, sort_keys=False, allow_unicode=True, width=100)
