"""The page in a real browser, on a real server with real traffic: what a person sees and what their orders do.

Needs chromium (Debian: `apt-get install chromium`). `LOOMRL_TEST_BROWSER=off` leaves it out, and nothing else does.
"""

import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from loomrl.serving.client import PolicyClient, Refused
from loomrl.serving.process import ServerProcess
from loomrl.storage.audit.history import records
from loomrl.storage.registry import CHAMPION, Registry
from loomrl.system.http.tokens import add
from tests.support.champions import promoted
from tests.support.policies import OBSERVATIONS, discrete_folder

pytestmark = pytest.mark.skipif(os.environ.get("LOOMRL_TEST_BROWSER") == "off", reason="LOOMRL_TEST_BROWSER=off")

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
OBS = -OBSERVATIONS[0]  # for which the policies choose 1
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def home(template_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The module's own, with databases."""
    home = tmp_path_factory.mktemp("home")
    for name in ("mlflow.db", "loom.db"):
        shutil.copy2(template_home / name, home / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOMRL_HOME", str(home))
        patch.setenv("LOOMRL_TOKENS_FILE", str(home / "tokens"))
        for name in ("MLFLOW_TRACKING_URI", "LOOMRL_DATABASE_URL", "LOOMRL_OPERATOR_TOKEN", "LOOMRL_TOKEN"):
            patch.delenv(name, raising=False)
        yield home


@pytest.fixture(scope="module")
def tokens(home: Path) -> dict[str, str]:
    """Of an operator and of an observer, by their names."""
    names = {"ada": "operate", "eve": "observe"}
    return {name: add(home / "tokens", name, [role]) for name, role in names.items()}


@pytest.fixture(scope="module")
def server(home: Path, tokens: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Version 2 is champion; version 1 was it before."""
    registry, folders = Registry(), tmp_path_factory.mktemp("policies")
    for number in (1, 2):
        promoted(registry, discrete_folder(folders / str(number), value=float(number)))
    with ServerProcess("cartpole", refresh_seconds=0.1) as started:
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Iterator[PolicyClient]:
    """An agent's."""
    with server.client() as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)
        yield started
        started.close()


@pytest.fixture
def page(server: ServerProcess, browser: Browser) -> Iterator[Page]:
    """A fresh tab at the page. Whatever goes wrong in it, or leaves for elsewhere, fails the test."""
    context = browser.new_context()
    context.set_default_timeout(600_000)
    page, errors, asked = context.new_page(), [], []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{server.url}/dashboard")
    yield page
    context.close()
    assert [text for text in errors if "the server responded with a status of 4" not in text] == []
    assert {url[: len(server.url) + 1] for url in asked} == {f"{server.url}/"}


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def num_decisions() -> int:
    return sum(entry["kind"] == "decision" for entry in records("cartpole"))


def test_it_asks_for_a_token_and_says_why_one_is_refused(page: Page, tokens: dict[str, str]) -> None:
    expect(page.get_by_text("This server wants a token")).to_be_visible()
    expect(page.get_by_role("main")).to_be_hidden()
    log_in(page, "guessed")
    expect(page.get_by_role("alert").filter(has_text="Authorization: Bearer TOKEN")).to_be_visible()
    log_in(page, tokens["eve"])
    expect(page.get_by_text("You are eve.")).to_be_visible()
    expect(page.get_by_text("the token of 'eve' has not the role operate")).to_be_visible()
    for name in ("Turn it on…", "Roll back version 2…", "Override all agents"):
        expect(page.get_by_role("button", name=name)).to_be_disabled()
    page.reload()
    expect(page.get_by_text("You are eve.")).to_be_visible()
    page.get_by_role("button", name="Forget the token").click()
    expect(page.get_by_role("main")).to_be_hidden()
    assert page.evaluate("[sessionStorage.length, localStorage.length, document.cookie]") == [0, 0, ""]


def test_it_shows_who_decides_and_moves_under_traffic(page: Page, client: PolicyClient, tokens: dict[str, str]) -> None:
    log_in(page, tokens["eve"])
    expect(page.locator("#state")).to_contain_text("version 2 decides")
    rate = page.locator("#figures > div", has_text="Decisions per s").locator("dd")
    for number in range(40):
        client.decide(f"cart-{number}", OBS)
    expect(rate).not_to_have_text("0")
    expect(page.get_by_role("row", name="2 champion 100 %").get_by_role("cell").nth(2)).to_have_text(
        str(num_decisions())
    )
    chart = page.get_by_role("img", name="Decisions per second: now version 2")
    assert "L" in (chart.locator("path.trace").first.get_attribute("d") or "")
    expect(page.get_by_role("img", name="Latency: now p50")).to_be_visible()
    expect(page.get_by_role("heading", name="Version 2, 40 decisions watched")).to_be_visible()
    evidence = page.locator("figure", has_text="unanswered")
    found = httpx.get(f"{client.url}/monitors", headers=bearer(tokens["eve"]), trust_env=False).json()["versions"]["2"][
        "monitors"
    ]["unanswered"]
    told = f"evidence {found['e_value']:.3g} of 1/α = {found['threshold']:.3g}"
    expect(evidence.get_by_role("img")).to_have_accessible_name(told)
    expect(evidence.locator("line.threshold")).to_have_count(1)


def test_an_override_decides_is_listed_and_is_cleared(page: Page, client: PolicyClient, tokens: dict[str, str]) -> None:
    log_in(page, tokens["ada"])
    assert client.decide("cart-7", OBS).action == 1
    page.get_by_label("Action", exact=True).fill("0")
    page.get_by_label("Agent").fill("cart-7")
    page.get_by_label("Expires after minutes").fill("10")
    page.get_by_role("textbox", name="Reason").fill("its <b>wheel</b> is changed")
    page.get_by_role("button", name="Override agent cart-7").click()
    expect(page.get_by_role("status")).to_contain_text("In force: agent cart-7: action 0, for 10 min.")
    decision = client.decide("cart-7", OBS)
    assert decision.action == 0
    assert decision.override is not None
    assert (decision.override["person"], decision.override["reason"]) == ("ada", "its <b>wheel</b> is changed")
    assert client.decide("cart-8", OBS).action == 1
    listed = page.get_by_role("list", name="Overrides in force").get_by_role("listitem")
    expect(listed).to_contain_text("ada: its <b>wheel</b> is changed")
    clear = page.get_by_role("button", name="Clear the override of agent cart-7")
    clear.focus()
    page.wait_for_function(
        "before => document.getElementById('state').textContent !== before", arg=page.inner_text("#state")
    )
    expect(clear).to_be_focused()  # what the page learns meanwhile takes nobody's place away
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text("The override of agent cart-7 is cleared.")
    expect(listed).to_have_count(0)
    assert client.decide("cart-7", OBS).action == 1


def test_what_went_wrong_with_an_order_is_told(page: Page, tokens: dict[str, str]) -> None:
    log_in(page, tokens["ada"])
    alert = page.get_by_role("main").get_by_role("alert")
    for action, message in (
        ("7", "Not done: action 7 is not one of 0 to 1"),
        ("left", "Not done: the action left is not JSON"),
    ):
        page.get_by_label("Action", exact=True).fill(action)
        page.get_by_role("textbox", name="Reason").fill("a try")
        page.get_by_role("button", name="Override all agents").click()
        expect(alert).to_contain_text(message)
    page.get_by_label("a version").check()
    page.get_by_label("Version", exact=True).fill("99")
    page.get_by_role("button", name="Override all agents").click()
    expect(alert).to_contain_text("Not done: version 99 cannot be pinned")


def test_the_kill_switch_by_keyboard_alone(page: Page, client: PolicyClient, tokens: dict[str, str]) -> None:
    log_in(page, tokens["ada"])
    for on, reason in ((True, "smoke"), (False, "no fire")):
        word = "on" if on else "off"
        page.get_by_role("button", name=f"Turn it {word}…").press("Enter")
        dialog = page.get_by_role("dialog", name=f"Turn the kill switch {word}")
        expect(dialog).to_contain_text("agents get no decisions (503)" if on else "Policies decide again")
        page.keyboard.type(reason)
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_have_text(f"The kill switch is {word}.")
        expect(dialog).to_be_hidden()
        if on:
            expect(page.get_by_text("ON, by ada: smoke")).to_be_visible()
            with pytest.raises(Refused, match="the kill switch is on, by ada: smoke"):
                client.decide("cart-7", OBS)
    assert client.decide("cart-7", OBS).role == "champion"


def test_a_server_that_does_not_answer_is_told_from_one_that_does(
    page: Page, server: ServerProcess, tokens: dict[str, str]
) -> None:
    log_in(page, tokens["eve"])
    expect(page.locator("#state")).to_contain_text("version 2 decides")
    silence = page.get_by_role("alert").filter(has_text="No news of the server. It does not answer.")
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    try:
        expect(silence).to_contain_text("What is shown is of")
        expect(page.get_by_text("not answering")).to_be_visible()
    finally:
        server.process.send_signal(signal.SIGCONT)
    expect(silence).to_be_hidden()
    expect(page.locator("#state")).to_contain_text("version 2 decides")


def test_it_fits_every_window_and_can_be_read(page: Page, tokens: dict[str, str]) -> None:
    log_in(page, tokens["ada"])
    expect(page.locator("#state")).to_contain_text("version 2 decides")
    for scheme, width in itertools.product(SCHEMES, (1280, 360)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width, (scheme, width)
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 40, (scheme, width)
        assert {text: contrast for text, contrast in contrasts if contrast < 4.5} == {}, (scheme, width)


# Of every text that is shown and not disabled, with what lies behind it (WCAG 2, 1.4.3).
CONTRASTS = """() => {
  const parts = (colour) => colour.match(/[0-9.]+/g).map(Number);
  const light = (colour) => {
    const [red, green, blue] = parts(colour).slice(0, 3).map((value) => value / 255)
      .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (one) => parts(getComputedStyle(one).backgroundColor)[3] === 0 && one.parentElement
    ? behind(one.parentElement) : getComputedStyle(one).backgroundColor;
  return [...document.querySelectorAll("body *")]
    .filter((one) => one.checkVisibility() && !one.matches(":disabled, .skip") && !(one instanceof SVGElement)
      && [...one.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()))
    .map((one) => {
      const [low, high] = [light(getComputedStyle(one).color), light(behind(one))].sort((a, b) => a - b);
      return [one.textContent.trim(), (high + 0.05) / (low + 0.05)];
    });
}"""


def test_a_rollback_moves_the_champion_and_its_reason_stands_there(
    page: Page, client: PolicyClient, tokens: dict[str, str]
) -> None:
    """The last one: version 1 is champion afterwards."""
    log_in(page, tokens["ada"])
    page.get_by_role("button", name="Roll back version 2…").click()
    dialog = page.get_by_role("dialog", name="Roll back version 2")
    expect(dialog).to_contain_text("The registry names version 1 champion again")
    dialog.get_by_label("Reason").fill("it stutters")
    dialog.get_by_role("button", name="Roll back version 2").click()
    expect(page.get_by_role("status")).to_contain_text("Done: version 1 is champion again, version 2 was taken back")
    assert client.decide("cart-7", OBS).version == "1"
    assert Registry().aliases("cartpole")[CHAMPION] == "1"
    expect(page.locator("#state")).to_contain_text("version 1 decides")
    moved = page.get_by_role("row", name="back to version 1, before: version 2")
    expect(moved.get_by_role("cell")).to_have_text(["back to version 1, before: version 2", "it stutters", "ada"])
