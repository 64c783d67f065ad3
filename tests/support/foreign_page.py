"""A page of another site in a real browser, which sends requests to a server of this machine in all ways a page can."""

import shutil
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Request, sync_playwright

from tests.support.projects import until

QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-sync"]
# Chromium keeps pages from reaching this machine's servers; other browsers do not, and a server must not rely on it.
# Each window's address bar has two pages of its own, which take more processor time than what a test does in it.
UNPROTECTED = "--disable-features=LocalNetworkAccessChecks,WebUIOmniboxPopup,WebUIOmniboxAimPopup"
# Which a page may take to load. One that is closed while it comes is never closed, and waited for for ever.
PATIENCE_MILLISECONDS = 600_000
EVIL = "evil.example"  # this machine, by a name that an attacker has bound to its address

# Each way in which a page may send something, and what came of it. What matters is what the server has done.
_ATTACK = """async ({url, method, body}) => {
  const answers = {};
  const attempt = async (name, send) => {
    try { answers[name] = await send(); } catch (error) { answers[name] = String(error); }
  };
  const ask = (more) => fetch(url, {method, credentials: "include", ...more});
  const send = (type, more) => ask({body, headers: {"Content-Type": type}, ...more});
  const show = (kind, address) => new Promise((resolve) => {
    const element = document.createElement(kind);
    element.addEventListener("load", () => resolve("loaded"));
    element.addEventListener("error", () => resolve("failed"));
    Object.assign(element, address);
    document.body.append(element);
  });
  let forms = 0;
  const submit = (attributes, name, value) => new Promise((resolve) => {
    const frame = document.createElement("iframe");
    const form = document.createElement("form");
    const field = document.createElement("input");
    frame.name = `target-${forms++}`;
    Object.assign(form, {method, action: url, target: frame.name, ...attributes});
    Object.assign(field, {name, value});
    form.append(field);
    document.body.append(frame, form);
    frame.addEventListener("load", () => { frame.remove(); resolve("sent"); });
    form.submit();
    setTimeout(() => resolve("sent"), 500);  // whatever is still under way is waited for below
  });
  if (method === "GET") {
    await attempt("read", async () => (await ask({})).status);
    await attempt("read, nothing sent along", async () => (await ask({credentials: "omit"})).status);
    await attempt("unread", async () => (await ask({mode: "no-cors"})).type);
    await attempt("picture", () => show("img", {src: url}));
    await attempt("picture, from nowhere", () => show("img", {src: url + "?", referrerPolicy: "no-referrer"}));
    await attempt("script", () => show("script", {src: url}));
    await attempt("style", () => show("link", {rel: "stylesheet", href: url}));
    await attempt("frame", () => show("iframe", {src: url}));
    await attempt("frame without an origin", () => show("iframe", {srcdoc: `<img src="${url}">`, sandbox: ""}));
    await attempt("form", () => submit({}, "a", "b"));
    await attempt("window", async () => String(open(url, "_blank", "noopener")));
    return answers;
  }
  await attempt("json", async () => (await send("application/json")).status);
  await attempt("json, nothing sent along", async () => (await send("application/json", {credentials: "omit"})).status);
  if (method !== "POST") return answers;
  await attempt("text", async () => (await send("text/plain")).status);
  await attempt("unread", async () => (await send("text/plain", {mode: "no-cors"})).type);
  await attempt("unread json", async () => (await send("application/json", {mode: "no-cors"})).type);
  await attempt("no type", async () => (await ask({mode: "no-cors", body: new Blob([body])})).type);
  await attempt("beacon", async () => navigator.sendBeacon(url, new Blob([body], {type: "text/plain"})));
  await attempt("json beacon", async () => navigator.sendBeacon(url, new Blob([body], {type: "application/json"})));
  const cut = body.lastIndexOf("}");
  const opened = body.slice(0, cut) + (body.length > 2 ? "," : "") + '"ignored":"';
  await attempt("form", () => submit({enctype: "text/plain"}, opened, '"}'));
  await attempt("coded form", () => submit({}, body, ""));
  await attempt("form of parts", () => submit({enctype: "multipart/form-data"}, "body", body));
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


def attack(context: BrowserContext, origin: str, url: str, body: str = "{}", method: str = "POST") -> dict[str, Any]:
    """Send `body` to `url` from a page of `origin`, in all ways there are; returns what the page saw of each.

    When it returns, everything that was sent has been answered, or the browser has given up. Playwright grants by
    itself what browsers ask a server for before they send JSON or PUT: the server has to refuse more than usual.
    """
    opened_before = context.pages
    page = context.new_page()
    page.route(f"{origin}/", lambda route: route.fulfill(content_type="text/html", body="<body>a page"))
    page.goto(f"{origin}/")
    pending: set[Request] = set()

    def ended(request: Request) -> None:
        pending.discard(request)

    context.on("request", lambda request: pending.add(request) if request.url.startswith(url) else None)
    context.on("requestfinished", ended)
    context.on("requestfailed", ended)
    seen: dict[str, Any] = page.evaluate(_ATTACK, {"url": url, "method": method, "body": body})

    def is_over() -> bool:
        page.wait_for_timeout(200)  # beacons and windows tell the page nothing, the browser does
        return not pending

    until(is_over, f"answers to {origin}", lambda: [request.url for request in pending])
    for one in set(context.pages) - set(opened_before):
        one.wait_for_load_state(timeout=PATIENCE_MILLISECONDS)
        one.close()
    return seen


def basic(login: str) -> str:
    """The header of HTTP Basic for USER:PASSWORD."""
    return f"Basic {b64encode(login.encode()).decode()}"
