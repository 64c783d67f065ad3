// Looks at the server each second and shows what it finds.

import { EvidenceChart, LineChart } from "./charts.js";
import { byId, element, fill, fillRows, say } from "./dom.js";
import {
  formatCount, formatDate, formatLatency, formatNumber, formatRate, formatShare, formatSpan, formatTime,
} from "./format.js";
import { History, quantile, sum, total } from "./history.js";
import * as orders from "./orders.js";
import { ask, forgetToken, hasToken, Refused, useToken } from "./server.js";

const LOOK_MS = 1_000;
const HISTORY_SECONDS = 600;
const INSTEAD = ["fallback", "override", "kill_switch"]; // who decides in a version's place
const history = new History();
let answered = null; // the server's time of the last answer
let timer = null;
let turns = 0;

// --- looking --------------------------------------------------------------------------------------------------------

async function look() {
  const turn = ++turns;
  clearTimeout(timer);
  try {
    const data = document.hidden ? null : await ask("GET", `dashboard/data?after=${history.last}`);
    if (turn !== turns) return; // a later look has begun
    if (data !== null) show(data);
  } catch (error) {
    if (turn !== turns) return;
    if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
      refuse(error.message); // looking again would be refused again
      return;
    }
    silence(error);
  }
  timer = setTimeout(look, LOOK_MS);
}

function refuse(message) {
  byId("main").hidden = true;
  byId("silence").hidden = true;
  byId("ask-token").hidden = false;
  byId("viewer").hidden = byId("forget").hidden = true;
  say(byId("state"), "locked");
  byId("wants-token").hidden = false;
  say(byId("who-failed"), hasToken() ? `Refused: ${message}` : "");
  forgetToken();
}

function silence(error) {
  const why = error instanceof Refused ? `It answers: ${error.message}` : "It does not answer.";
  const since = answered === null ? "" : ` What is shown is of ${formatTime(answered)}.`;
  say(byId("silence"), `No news of the server. ${why}${since}`);
  byId("silence").hidden = false;
  byId("main").classList.add("stale");
  say(byId("state"), "not answering");
  byId("state").className = "state bad";
}

function show(data) {
  answered = data.time;
  history.add(data);
  byId("silence").hidden = true;
  byId("main").hidden = false;
  byId("main").classList.remove("stale");
  showViewer(data.you);
  showState(data);
  showFigures(data);
  drawCharts(data);
  showVersions(data);
  showTests(data);
  showInterventions(data);
  showEvents(data.events);
  orders.show(data);
}

function showViewer({ name }) {
  say(byId("who-failed"), "");
  byId("ask-token").hidden = byId("wants-token").hidden = true;
  byId("viewer").hidden = false;
  byId("forget").hidden = name === null;
  say(byId("viewer"), name === null ? "" : `You are ${name}.`);
}

// --- now ------------------------------------------------------------------------------------------------------------

function showState({ status }) {
  const champion = status.roles.champion?.version;
  say(byId("policy"), status.policy);
  document.title = `${status.policy}${status.kill_switch === null ? "" : ": KILL SWITCH ON"} · policy server`;
  const instead = status.plan.fallback === null ? "nothing decides" : "the fallback decides";
  const ready = champion === undefined ? `no champion: ${instead}` : `version ${champion} decides`;
  const decides = status.kill_switch === null ? ready : "the kill switch is on";
  say(byId("state"), `${decides} · ${status.audit.server} · up ${formatSpan(status.uptime_seconds)}`);
  byId("state").className = `state ${champion === undefined || status.kill_switch !== null ? "bad" : "good"}`;
  const faults = [
    ...Object.entries({ ...status.errors, registry: status.registry_error, audit: status.audit.sync_error }),
    ["roles", status.roles_source.verified && `as verified last, ${status.roles_source.verified}`],
    ["orders", status.orders.unsaved ?? status.orders.reserved ?? status.orders.damaged],
    ["orders", status.orders.missing],
    ["orders", status.orders.unconfirmed.length ? `not confirmed by workers ${status.orders.unconfirmed}` : null],
    ...status.refused.map(({ version, reason }) => [`version ${version} is refused`, reason]),
  ].filter(([, text]) => text !== null);
  const update = (entry, [name, text]) => say(entry, `${name}: ${text}`);
  fill(byId("faults"), faults, ([name]) => name, () => element("li"), update);
}

function showFigures({ status }) {
  const latency = (share) => {
    const found = history.latency(60, share);
    return found === null ? "–" : formatLatency(found);
  };
  const refused = (point) => total(point.problems);
  const { champion, challenger } = status.roles;
  const figures = [
    ["Champion", champion?.version ?? "none", challenger ? `challenger: ${challenger.version}` : "no challenger"],
    ["Decisions per s", formatRate(history.rate(10, (point) => total(point.decisions))), "last 10 s"],
    ["Latency p50", latency(0.5), "last minute"],
    ["Latency p99", latency(0.99), "last minute"],
    ["Interventions", formatCount(history.count(60, interventions)), "last minute"],
    ["Requests refused", formatCount(history.count(60, refused)), "last minute"],
  ];
  const make = () => element("div", {}, element("dt"), element("dd"), element("small"));
  fill(byId("figures"), figures, ([name]) => name, make, (place, texts) =>
    texts.forEach((text, index) => say(place.children[index], text)));
}

// Decisions by these kinds, of all versions; and those of one version that nobody took in its place.
const by = (point, ...kinds) =>
  sum(Object.values(point.decisions ?? {}).flatMap((counts) => kinds.map((kind) => counts[kind] ?? 0)));
const own = (point, version) =>
  sum(Object.entries(point.decisions?.[version] ?? {}).map(([kind, count]) => (INSTEAD.includes(kind) ? 0 : count)));
const interventions = (point) => total(point.prevented) + by(point, ...INSTEAD);

const charts = {
  decisions: new LineChart("Decisions per second", { format: formatRate }),
  latency: new LineChart("Latency", { format: formatLatency, logarithmic: true }),
  interventions: new LineChart("Interventions per second", { format: formatRate }),
  agreement: new LineChart("Challengers that agree with who acts", { format: formatShare, top: 1 }),
};
byId("charts").append(...Object.values(charts).map((chart) => chart.figure));

function drawCharts({ totals }) {
  const { points } = history;
  const times = points.map((point) => point.time);
  const rates = (of) => points.map((point) => of(point) / point.seconds);
  const busiest = Object.keys(totals.decisions).sort((one, other) => own(totals, other) - own(totals, one)).slice(0, 3);
  charts.decisions.draw(times, [
    ...busiest.sort().map((version) => ({ name: `version ${version}`, values: rates((point) => own(point, version)) })),
    { name: "others in their place", values: rates((point) => by(point, ...INSTEAD)) },
  ]);
  charts.latency.draw(times, [0.5, 0.99].map((share) =>
    ({ name: `p${100 * share}`, values: points.map((point) => quantile([point], share)) })));
  charts.interventions.draw(times, [
    { name: "shield", values: rates((point) => total(point.prevented)) },
    { name: "fallback", values: rates((point) => by(point, "fallback", "kill_switch")) },
    { name: "override", values: rates((point) => by(point, "override")) },
    { name: "limited", values: rates((point) => total(point.limited)) },
  ]);
  const challengers = Object.keys(totals.compared).slice(-4);
  charts.agreement.figure.hidden = challengers.length === 0;
  if (challengers.length) charts.agreement.draw(times, challengers.map((version) =>
    ({ name: `version ${version}`, values: points.map((point) => agreement(point.compared?.[version])) })));
}

const agreement = (found) => (found?.num_decisions ? (found.num_agreed ?? 0) / found.num_decisions : null);

// --- versions -------------------------------------------------------------------------------------------------------

function showVersions({ status, totals, shares, previous }) {
  const versions = new Set([...status.loaded, ...Object.keys(totals.decisions), ...Object.keys(shares)]);
  const rows = [...versions].sort().map((version) => {
    const compared = totals.compared[version];
    const mean = (values) => formatNumber(values / compared.num_decisions);
    return { key: version, cells: [
      version,
      rolesOf(version, status, shares, previous).join(", "),
      agentsOf(version, status, shares),
      formatCount(own(totals, version)),
      formatRate(history.rate(10, (point) => own(point, version))),
      compared === undefined ? "–" : `${formatShare(agreement(compared))} of ${formatCount(compared.num_decisions)}`,
      compared === undefined ? "–" : `${mean(compared.value)} (${mean(compared.acting_value)})`,
    ] };
  });
  fillRows(byId("version-rows"), rows, ["", "", "num", "num", "num", "num", "num"]);
  say(byId("shadow"), shadowText(status.shadow));
}

function shadowText({ num_mirrored, num_dropped, num_errors, num_pending, num_restarts, last_error, refused }) {
  return [
    `In shadow: ${formatCount(num_mirrored)} decisions mirrored, ${formatCount(num_dropped)} dropped,`,
    `${formatCount(num_errors)} failed, ${formatCount(num_pending)} records to come;`,
    `the process ended ${formatCount(num_restarts)} times.`,
    ...(last_error === null ? [] : [`Last error: ${last_error}.`]),
    ...refused.map(({ version, reason }) => `Version ${version} is shown nothing more: ${reason}.`),
  ].join(" ");
}

function rolesOf(version, { roles, plan, quarantined }, shares, previous) {
  const found = [
    [roles.champion?.version === version, "champion"],
    [version in shares, "split"],
    [roles.challenger?.version === version || plan.challengers.includes(version), "challenger"],
    [plan.fallback?.version === version, "fallback"],
    [previous === version, "champion before"],
    [quarantined.some((entry) => entry.version === version), "out of service"],
  ].filter(([holds]) => holds).map(([, name]) => name);
  return found.length ? found : ["–"];
}

function agentsOf(version, { roles }, shares) {
  if (version in shares) return formatShare(shares[version]);
  const rest = 1 - sum(Object.values(shares));
  return roles.champion?.version === version ? formatShare(rest) : "–";
}

// --- tests, interventions, deployments ------------------------------------------------------------------------------

const evidence = new Map(); // version and monitor -> chart

function showTests({ monitors, status }) {
  const versions = Object.entries(monitors.versions).filter(([version, found]) =>
    found.trigger !== null || (found.num_decisions > 0 && status.loaded.includes(version)));
  byId("no-tests").hidden = versions.length > 0;
  const make = () => element("div", {}, element("h3"), element("div", { className: "tests" }));
  fill(byId("tests"), versions, ([version]) => version, make, (place, [version, found]) => {
    const over = found.trigger === null ? "" : `: OUT OF SERVICE, ${found.trigger.reason}`;
    say(place.firstChild, `Version ${version}, ${formatCount(found.num_decisions)} decisions watched${over}`);
    const chart = (name) => evidence.get(`${version} ${name}`) ?? new EvidenceChart(name);
    const made = ([name]) => {
      evidence.set(`${version} ${name}`, chart(name));
      return chart(name).figure;
    };
    const draw = (_, [name, monitor]) => chart(name).draw(monitor);
    fill(place.lastChild, Object.entries(found.monitors), ([name]) => name, made, draw);
  });
}

function showInterventions({ status, totals }) {
  const tell = (entry, { version, to, time, reason }) => {
    const instead = to === null ? "There is none to go back to." : `Version ${to} decides instead.`;
    const when = formatDate(Date.parse(time) / 1000);
    say(entry, `Version ${version} was taken out of service ${when}: ${reason}. ${instead}`);
  };
  fill(byId("taken-out"), status.quarantined, ({ version }) => version, () => element("li"), tell);
  const suspicions = status.guardian?.suspicions ?? [];
  fill(byId("suspicions"), suspicions, (reason) => reason, () => element("li"), say);
  const shields = Object.entries(totals.prevented).flatMap(([version, counts]) => Object.keys(counts).map((name) =>
    [`Shield: ${name}, version ${version}`, (point) => total(point.prevented?.[version]?.[name])]));
  const statuses = Object.keys(totals.problems).map((code) =>
    [`Requests refused with ${code}`, (point) => total(point.problems?.[code])]);
  const kinds = [
    ...shields,
    ["Decided by the fallback", (point) => by(point, "fallback")],
    ["Decided under the kill switch", (point) => by(point, "kill_switch")],
    ["Decided by an override", (point) => by(point, "override")],
    ["Requests over the rate limit", (point) => total(point.limited)],
    ...statuses,
  ];
  const rows = kinds.map(([name, of]) => ({ key: name, cells: [
    name, ...[60, HISTORY_SECONDS].map((seconds) => formatCount(history.count(seconds, of))), formatCount(of(totals)),
  ] }));
  fillRows(byId("intervention-rows"), rows, ["", "num", "num", "num"]);
}

function showEvents(events) {
  byId("no-events").hidden = events.length > 0;
  const rows = events.map((event) => ({
    key: `${event.time} ${event.kind} ${event.version}`,
    cells: [formatDate(event.time), whatHappened(event), event.reason, event.person ?? "–"],
  }));
  fillRows(byId("event-rows"), rows, ["", "", "why", ""]);
}

function whatHappened({ kind, version, other }) {
  const before = other === null ? "" : `, before: version ${other}`;
  if (kind === "promotion") return `version ${version} promoted${before}`;
  if (kind === "rollback") return `back to version ${version}${before}`;
  if (kind === "refusal") return `version ${version} refused`;
  return `version ${version} out of service${other === null ? "" : `, now: version ${other}`}`;
}

// --- who looks ------------------------------------------------------------------------------------------------------

byId("who").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("token").value);
  byId("token").value = "";
  look();
});
byId("forget").addEventListener("click", () => {
  forgetToken();
  look();
});
document.addEventListener("visibilitychange", () => document.hidden || look());
orders.begin(look);
look();
