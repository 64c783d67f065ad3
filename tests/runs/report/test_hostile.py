"""A plug-in, or whoever writes a run's artifacts, puts markup wherever there is a text: none of it becomes any."""

import base64
import json
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from loomrl.evaluation.data_gate import DataValidation
from loomrl.runs.report.build import build_report
from loomrl.storage.run_record import run_folder
from loomrl.system.schema import Document
from loomrl.types import (
    EnvironmentSnapshot,
    EvaluationReport,
    ParityReport,
    PolicyManifest,
    SafetyCase,
    TrainingReport,
)

EVIL = "</pre></style></title></text></svg><script>hostile()</script><img src=x onerror=hostile()>\"'`{{7*7}}"
KINDS: dict[str, type[Document]] = {
    "environment/snapshot.json": EnvironmentSnapshot,
    "training/training.json": TrainingReport,
    "evaluation/evaluation.json": EvaluationReport,
    "evaluation/data_validation.json": DataValidation,
    "safety/case.json": SafetyCase,
    "export/manifest.json": PolicyManifest,
    "export/parity.json": ParityReport,
}


class Found(HTMLParser):
    """What a page could run, or ask others for, and what it shows."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.active: list[str] = []
        self.shown: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "iframe", "object", "embed", "form", "base"):
            self.active.append(tag)
        outside = ("src", "href", "xlink:href", "action", "srcset")
        own = ("#", "data:image/", "data:,", "record.json", "report.json")
        self.active += [name for name, value in attrs if name.startswith("on")]
        self.active += [
            f"{name}={value}" for name, value in attrs if name in outside and not (value or "").startswith(own)
        ]

    def handle_data(self, data: str) -> None:
        self.shown.append(data)


def texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the texts of a document stand."""
    if isinstance(value, str):
        yield path
    for key, one in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from texts(one, (*path, key))


def with_text(document: Any, path: tuple[Any, ...], text: str) -> Any:
    """A copy in which another text stands there."""
    copy = json.loads(json.dumps(document))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = text
    return copy


def spoil(path: Path, kind: type[Document]) -> int:
    """Put markup in place of every text of a document that may be any text, and into the keys of every mapping; returns
    how many there are."""
    document, num_places = json.loads(path.read_bytes()), 0
    for place in list(texts(document)):
        other = with_text(document, place, EVIL)
        try:
            kind.model_validate(other, strict=False)
        except ValidationError:
            continue
        document, num_places = other, num_places + 1
    path.write_text(json.dumps(document))
    return num_places


def test_no_text_of_any_document_becomes_markup(make_run: Any, project: Path) -> None:
    folder = project / "artifacts" / "cartpole"
    for name, kind in KINDS.items():
        good = (folder / name).read_bytes()
        num_places = spoil(folder / name, kind)
        record = make_run()
        shutil.rmtree(run_folder(record.run_id) / "evidence", ignore_errors=True)
        found = Found(build_report(record.run_id, project).read_text())
        assert found.active == [], name
        if num_places:
            assert any("hostile()" in text for text in found.shown), name
            assert not any("49" in text and "{{" not in text and "hostile" in text for text in found.shown), name
        (folder / name).write_bytes(good)


@pytest.mark.parametrize("name", ["../../secret.png", "/etc/passwd", "..", "evaluation.json", "secret.svg", "a\0b.png"])
def test_a_picture_is_a_picture_of_its_stage(make_run: Any, project: Path, name: str) -> None:
    folder = project / "artifacts" / "cartpole" / "evaluation"
    (project / "artifacts" / "secret.png").write_bytes(b"a secret of the machine's")
    (folder / "secret.svg").write_text("<svg onload='hostile()'/>")
    document = json.loads((folder / "evaluation.json").read_bytes()) | {"picture": name}
    (folder / "evaluation.json").write_text(json.dumps(document))
    page = build_report(make_run().run_id, project).read_text()
    assert base64.b64encode(b"a secret of the machine's").decode() not in page
    assert "image/svg" not in page
    assert "root:" not in page


def test_nor_is_a_link_to_another_file(make_run: Any, project: Path) -> None:
    folder = project / "artifacts" / "cartpole" / "evaluation"
    (project / "secret").write_bytes(b"a secret of the machine's")
    (folder / "link.png").symlink_to(project / "secret")
    document = json.loads((folder / "evaluation.json").read_bytes()) | {"picture": "link.png"}
    (folder / "evaluation.json").write_text(json.dumps(document))
    page = build_report(make_run().run_id, project).read_text()
    assert base64.b64encode(b"a secret of the machine's").decode() not in page
