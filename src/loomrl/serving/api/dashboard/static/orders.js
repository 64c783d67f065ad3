// What operators order: overrides, the kill switch, a rollback. Each says what it will do, and then what came of it.

import { byId, element, fill, say } from "./dom.js";
import { formatSpan } from "./format.js";
import { ask, Refused } from "./server.js";

const ROLLBACK_MS = 150_000; // the registry moves its aliases in a process of its own
let seen = null; // what the page shows, and what orders are about
let lookAgain = () => {};

export function begin(look) {
  lookAgain = look;
  byId("override").addEventListener("submit", setOverride);
  byId("override").addEventListener("input", describeOverride);
  byId("kill").addEventListener("click", () => confirm(killQuestion()));
  byId("rollback").addEventListener("click", () => confirm(rollbackQuestion()));
  byId("confirm-not").addEventListener("click", () => byId("confirm").close());
}

export function show(data) {
  seen = data;
  const { you, status, previous } = data;
  const { kill_switch: kill, overrides, loaded } = status;
  const champion = status.roles.champion?.version;
  byId("may-not").hidden = you.refused === null;
  say(byId("may-not"), you.refused ?? "");
  byId("override-fields").disabled = byId("kill").disabled = you.refused !== null;
  byId("rollback").disabled = you.refused !== null || champion === undefined;
  say(byId("kill-state"), kill === null ? "Off: policies decide." : `ON, by ${kill.person}: ${kill.reason}`);
  byId("kill-state").className = kill === null ? "" : "on";
  say(byId("kill"), kill === null ? "Turn it on…" : "Turn it off…");
  say(byId("rollback-state"), championText(champion, previous));
  say(byId("rollback"), champion === undefined ? "Roll back…" : `Roll back version ${champion}…`);
  byId("no-overrides").hidden = overrides.length > 0;
  fill(byId("overrides"), overrides, (one) => one.id, overrideEntry, (entry, one) => {
    say(entry.firstChild, describe(one, data.time));
    entry.lastChild.disabled = you.refused !== null;
  });
  const offered = chosen() === "version" ? loaded : [];
  fill(byId("versions"), offered, (one) => one, (value) => element("option", { value }), () => {});
  describeOverride();
}

function championText(champion, previous) {
  if (champion === undefined) return "There is none.";
  const before = previous === null ? "No version before it is loaded." : `Before it: version ${previous}.`;
  return `Version ${champion} decides. ${before}`;
}

// What an override pins, or a fallback is.
const pinned = ({ action, version }) => version === null ? `action ${JSON.stringify(action)}` : `version ${version}`;

function describe(override, now) {
  const what = override.fallback ? "the fallback" : pinned(override);
  const who = override.agent_id === null ? "ALL agents" : `agent ${override.agent_id}`;
  const until = override.expires === null ? "until cleared" : `for ${formatSpan(Math.max(0, override.expires - now))}`;
  return `${who}: ${what}, ${until}. ${override.person}: ${override.reason}`;
}

function overrideEntry(override) {
  const who = override.agent_id === null ? "all agents" : `agent ${override.agent_id}`;
  const clear = element("button", { type: "button" }, "Clear");
  clear.setAttribute("aria-label", `Clear the override of ${who}`);
  const path = `override/${encodeURIComponent(override.id)}`, done = `The override of ${who} is cleared.`;
  clear.addEventListener("click", () => carryOut(clear, "DELETE", path, undefined, done));
  return element("li", {}, element("p"), clear);
}

// --- orders ---------------------------------------------------------------------------------------------------------

// Carry one out, and tell what came of it; whether it was done. A second press before the answer does nothing.
async function carryOut(place, method, path, document, done, waitMs = undefined) {
  if (place.getAttribute("aria-busy") === "true") return false;
  place.setAttribute("aria-busy", "true");
  say(byId("done"), "Ordered; the server has not answered yet.");
  say(byId("failed"), "");
  try {
    const answer = await ask(method, path, document, waitMs);
    say(byId("done"), typeof done === "string" ? done : done(answer));
    return true;
  } catch (error) {
    say(byId("done"), "");
    say(byId("failed"), error instanceof Refused ? `Not done: ${error.message}`
      : "No answer: it is not known whether this was done. Look at what is in force before you repeat it.");
    return false;
  } finally {
    place.removeAttribute("aria-busy");
    lookAgain();
  }
}

const chosen = () => new FormData(byId("override")).get("what") ?? "action";

function describeOverride() {
  const what = chosen(), agent = byId("agent").value.trim();
  const isFallback = what === "fallback", fallback = seen?.status.plan.fallback;
  byId("value-field").hidden = byId("value").disabled = isFallback;
  say(byId("value-label"), what === "version" ? "Version" : "Action");
  const loaded = seen === null ? "" : `Loaded: ${seen.status.loaded.join(", ") || "none"}`;
  say(byId("value-hint"), what === "version" ? loaded : "As JSON: 0, or [0.1, -0.3]");
  const nobody = isFallback && !fallback ? " (none is set: they get 503)" : "";
  say(byId("set-override"), `Override ${agent === "" ? "all agents" : `agent ${agent}`}${nobody}`);
}

async function setOverride(event) {
  event.preventDefault();
  const what = chosen(), agent = byId("agent").value.trim(), minutes = byId("minutes").valueAsNumber;
  const order = { person: seen.you.name, reason: byId("reason").value, agent_id: agent === "" ? null : agent };
  if (!Number.isNaN(minutes)) order.expires_in_seconds = 60 * minutes;
  if (what === "fallback") order.fallback = true;
  if (what === "version") order.version = byId("value").value.trim();
  if (what === "action") {
    try {
      order.action = JSON.parse(byId("value").value);
    } catch {
      say(byId("failed"), `Not done: the action ${byId("value").value} is not JSON, such as 0 or [0.1, -0.3]`);
      return;
    }
  }
  const done = (override) => `In force: ${describe(override, override.created)}`;
  if (await carryOut(event.target, "POST", "override", order, done)) event.target.reset();
}

function killQuestion() {
  const isOn = seen.status.kill_switch !== null, fallback = seen.status.plan.fallback;
  const decides = fallback === null ? "No fallback is set: agents get no decisions (503)."
    : `The fallback decides for all agents: ${pinned(fallback)}.`;
  return {
    title: isOn ? "Turn the kill switch off" : "Turn the kill switch on",
    text: isOn ? "Policies decide again, from the next decision on." : `${decides} Overrides stay in force.`,
    order: (place, reason) => carryOut(place, "PUT", "kill-switch", { on: !isOn, person: seen.you.name, reason },
      `The kill switch is ${isOn ? "off" : "on"}.`),
  };
}

function rollbackQuestion() {
  const version = seen.status.roles.champion.version, before = seen.previous;
  const next = before === null ? "the champion before it" : `version ${before}`;
  return {
    title: `Roll back version ${version}`,
    text: `The registry names ${next} champion again, for every server of this policy. This takes some seconds.`,
    order: (place, reason) =>
      carryOut(place, "POST", "rollback", { version, reason }, (answer) => `Done: ${answer.message}`, ROLLBACK_MS),
  };
}

function confirm({ title, text, order }) {
  const dialog = byId("confirm"), form = dialog.querySelector("form");
  say(byId("confirm-title"), title);
  say(byId("confirm-text"), text);
  say(byId("confirm-do"), title);
  form.reset();
  form.onsubmit = (event) => {
    event.preventDefault();
    dialog.close();
    order(byId("orders-title"), byId("confirm-reason").value);
  };
  dialog.showModal();
}
