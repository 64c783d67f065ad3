"""What docs/scaling.md says of learners' and workers' speed is what was measured last."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts, not a package

import speed_page as page  # noqa: E402


def test_the_page_is_drawn_from_the_results() -> None:
    text = page.PAGE.read_text()
    assert "<!-- begin: speed -->" in text
    assert page.rendered(text) == text, "python benchmarks/speed_page.py draws it anew"
