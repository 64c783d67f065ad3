"""A page of another site in a real browser, which sends requests to a server of this machine in all ways a page can."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, sync_playwright

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]
# Chromium keeps pages from reaching this machine's servers; other browsers do not, and a server must not rely on it.
UNPROTECTED = "--disable-features=LocalNetworkAccessChecks"
EVIL = "evil.example"  # this machine, by a name that an attacker has bound to its address

# Each way in which a page may send something, and what came of it. What matters is what the server has done.
_ATTACK = """async ({url, body}) => {
  const answers = {};
  const attempt = async (name, send) => {
    try { answers[name] = await send(); } catch (error) { answers[name] = String(error); }
  };
  const post = (headers, more) => ({method: "POST", body, headers, credentials: "include", ...more});
  await attempt("json", async () => (await fetch(url, post({"Content-Type": "application/json"}))).status);
  await attempt("json, nothing sent along", async () =>
    (await fetch(url, post({"Content-Type": "application/json"}, {credentials: "omit"}))).status);
  await attempt("text", async () => (await fetch(url, post({"Content-Type": "text/plain"}))).status);
  await attempt("unread", async () => (await fetch(url, post({"Content-Type": "text/plain"}, {mode: "no-cors"}))).type);
  await attempt("no type", async () => (await fetch(url, post({}, {mode: "no-cors", body: new Blob([body])}))).type);
  await attempt("beacon", async () => navigator.sendBeacon(url, new Blob([body], {type: "text/plain"})));
  await attempt("form", () => new Promise((resolve) => {
    const frame = document.createElement("iframe");
    const form = document.createElement("form");
    const field = document.createElement("input");
    frame.name = "target";
    Object.assign(form, {method: "post", action: url, enctype: "text/plain", target: "target"});
    const cut = body.lastIndexOf("}");
    field.name = body.slice(0, cut) + (body.length > 2 ? "," : "") + '"ignored":"';
    field.value = '"}';
    form.append(field);
    document.body.append(frame, form);
    frame.addEventListener("load", () => resolve("sent"));
    form.submit();
    setTimeout(() => resolve("sent"), 3000);
  }));
  return answers;
}"""


@contextmanager
def browser() -> Iterator[Browser]:
    """Chromium, for which `EVIL` is this machine."""
    with sync_playwright() as playwright:
        rules = f"--host-resolver-rules=MAP {EVIL} 127.0.0.1"
        started = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=[*QUIET, UNPROTECTED, rules]
        )
        yield started
        started.close()


def attack(context: BrowserContext, origin: str, url: str, body: str = "{}") -> dict[str, Any]:
    """Send `body` to `url` from a page of `origin`, in all ways there are; returns what the page saw of each."""
    page = context.new_page()
    page.route(f"{origin}/", lambda route: route.fulfill(content_type="text/html", body="<body>a page"))
    page.goto(f"{origin}/")
    seen: dict[str, Any] = page.evaluate(_ATTACK, {"url": url, "body": body})
    page.wait_for_timeout(500)  # the beacon tells nobody when it has arrived
    page.close()
    return seen
