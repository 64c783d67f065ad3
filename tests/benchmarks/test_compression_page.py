"""What docs/scaling.md says of bytes and returns is what was measured last."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts, not a package

import compression_page as page  # noqa: E402


def test_the_page_is_drawn_from_the_results() -> None:
    text = page.PAGE.read_text()
    assert "<!-- begin: compression -->" in text
    assert page.rendered(text) == text, "python benchmarks/compression_page.py draws it anew"


def test_joined_gradients_and_what_costs_100_times_fewer_bytes_have_five_seeds() -> None:
    for figures in json.loads(page.RESULTS.read_text())["figures"].values():
        assert min(figures[name]["seeds"] for name in ("one_learner", "every_step", "every_update_int8")) >= 5
        assert figures["every_update_int8"]["times_fewer"] >= 100.0
