"""The page in a real browser: what a person sees of a hub.

Needs chromium (Debian: `apt-get install chromium`). `LOOMRL_TEST_BROWSER=off` leaves it out, and nothing else does.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from loomrl.language.trajectory.client import HubClient
from loomrl.language.trajectory.process import HubProcess
from tests.support.atropos import group

pytestmark = pytest.mark.skipif(os.environ.get("LOOMRL_TEST_BROWSER") == "off", reason="LOOMRL_TEST_BROWSER=off")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]
expect.set_options(timeout=60_000)


@pytest.fixture
def page() -> Iterator[Page]:
    """A page that has failed at nothing when the test is over."""
    binary = shutil.which("chromium") or shutil.which("google-chrome")
    if binary is None:
        pytest.fail("no chromium: install it (Debian: apt-get install chromium) or set LOOMRL_TEST_BROWSER=off")
    failures: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=QUIET)
        page = browser.new_page(viewport={"width": 500, "height": 900})
        page.on("pageerror", lambda error: failures.append(str(error)))
        yield page
        browser.close()
    assert not failures


def test_the_page_shows_environments_queues_and_scores(own_hub: HubProcess, page: Page) -> None:
    with HubClient(own_hub.url) as client:
        client.register(batch_size=4, max_token_len=64, num_steps=10)
        client.next_batch()
        env_id = client.register_environment("<b>arithmetic</b>", group_size=2, max_token_length=64)
        page.goto(f"{own_hub.url}/dashboard")
        expect(page.get_by_role("status")).to_have_text("A trainer is registered: batches of 4 sequences")
        expect(page.get_by_role("row", name="<b>arithmetic</b>_0 taking part")).to_be_visible()
        client.post({**group(2, env_id=env_id), "scores": [0.25, 0.75]})
        expect(page.locator("#queues > div", has_text="Queued groups").locator("dd")).to_have_text("1")
        expect(page.locator("#reward-range")).to_contain_text("0.5 now")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_it_asks_for_a_token_where_one_is_needed(tmp_path: Path, page: Page) -> None:
    tokens = f"observe:eve:{hashlib.sha256(b'secret').hexdigest()}"
    with HubProcess(environment={"LOOMRL_TOKENS": tokens}) as hub:
        page.goto(f"{hub.url}/dashboard")
        page.get_by_label("This hub wants a token that may observe").fill("secret")
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_role("status")).to_have_text("No trainer is registered")
