"""What docs/serving.md says a decision costs is what was measured last."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts, not a package

import serving_page as page  # noqa: E402


def test_the_page_is_drawn_from_the_results() -> None:
    text = page.PAGE.read_text()
    assert "<!-- begin: measured -->" in text
    assert page.rendered(text) == text, "python benchmarks/serving_page.py draws it anew"


def test_every_target_was_judged_in_every_round() -> None:
    found = json.loads((page.RESULTS / "serving.json").read_text())
    assert len(found["targets"]) == 4
    for row in found["targets"].values():
        assert len(row["ratios"]) == len(found["rounds"])
        assert row["reached"] == (row["median"] >= row["least"])
