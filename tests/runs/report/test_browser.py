"""The page in a real browser: it paints, fits the window, and asks the network for nothing.

Needs chromium (Debian: `apt-get install chromium`). `LOOMRL_TEST_BROWSER=off` leaves it out, and nothing else does.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from loomrl.runs.report.build import build_report

pytestmark = pytest.mark.skipif(os.environ.get("LOOMRL_TEST_BROWSER") == "off", reason="LOOMRL_TEST_BROWSER=off")

# Chromium prints the page's DOM after this ran: the width the page needs beside the window's, and what overflows.
PROBE = """<script>
addEventListener("load", () => {
  const wide = [...document.querySelectorAll("body *")].filter(one =>
    one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".scroll, pre, .wide, .skip, .hidden"));
  const broken = [...document.images].filter(one => !one.complete || !one.naturalWidth).length;
  document.title = JSON.stringify({needed: document.documentElement.scrollWidth, window: innerWidth,
    images: document.images.length, broken, requests: performance.getEntriesByType("resource")
      .map(one => one.name).filter(one => !one.startsWith("data:")),
    wide: wide.map(one => one.tagName + "." + one.className).slice(0, 5)});
});
</script>"""


def chromium(*arguments: str, profile: Path) -> str:
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if binary is None:
        pytest.fail("no chromium: install it (Debian: apt-get install chromium) or set LOOMRL_TEST_BROWSER=off")
    flags = [
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        f"--user-data-dir={profile}", "--virtual-time-budget=5000",
    ]  # fmt: skip
    return subprocess.run([binary, *flags, *arguments], check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.parametrize("width", [1280, 500])
def test_page_fits_and_paints(make_run, project, tmp_path, width: int) -> None:
    page = build_report(make_run().run_id, project)
    probed = page.with_name("probed.html")
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    html = page.read_text()
    assert policy in html
    html = html.replace(policy, policy + "; script-src 'unsafe-inline'").replace("</body>", f"{PROBE}</body>")
    probed.write_text(html)
    dom = chromium("--dump-dom", f"--window-size={width},2000", probed.as_uri(), profile=tmp_path / "profile")
    title = dom[dom.index("<title>") + 7 : dom.index("</title>")]
    found = json.loads(title)
    assert found["window"] == width
    assert found["wide"] == []
    assert found["needed"] <= width
    assert (found["images"], found["broken"]) == (2, 0)
    assert found["requests"] == []
