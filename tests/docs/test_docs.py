"""Every command and snippet in the README and the docs, run in order in a copy of the project that has run CartPole."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.projects import copy_state, environment

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# `make run` is what the finished project did, `make test` is what runs now, and it began with `make setup`.
# Pages of a minute and more: they start servers and life cycles of their own.
LONG = (
    *("serving.md", "gym.md", "safety.md", "comparing.md", "operations.md", "trajectory-api.md", "scaling.md"),
    *("promotion.md", "environments.md", "README.md", "evaluation.md", "export.md", "ppo.md", "replay.md"),
    "benchmarks.md",
)
RUN_ALREADY = re.compile(r"^make (run|test|long|setup|bench|mutations|calibration)\b.*$", re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """The page's runnable blocks: (language, text)."""
    return BLOCK.findall(page.read_text())


def _marked(page: Path) -> Any:
    marks = [pytest.mark.long] if page.name in LONG else []
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.mark.parametrize("page", [_marked(page) for page in PAGES if blocks(page)])
def test_every_block_runs(page: Path, finished_project: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if page.name in LONG:
        request.getfixturevalue("shared_prefect")  # the others run no flow
    project = tmp_path / "project"
    copy_state(finished_project, project)
    script = tmp_path / "page.sh"
    script.write_text("set -euo pipefail\n" + "\n".join(_shell(*block) for block in blocks(page)))
    settings = environment(project)
    done = subprocess.run(
        ["bash", "-x", str(script)], cwd=project, env=settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{page.name}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}, which is not there"


def _shell(language: str, text: str) -> str:
    if language == "python":
        return f"python - <<'PYTHON'\n{text}PYTHON\n"
    return RUN_ALREADY.sub("true", text)
