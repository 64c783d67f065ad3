"use strict";

// Asks /hub again and again and shows what it says. Rates and the curve are differences of the hub's own counts.

const SECONDS_BETWEEN = 2;
const MAX_POINTS = 300;
const scores = [];
let token = "";
let before = null;

const element = (id) => document.getElementById(id);
const shown = (value) => (typeof value === "number" ? value.toLocaleString("en", { maximumFractionDigits: 3 }) : value ?? "–");

function cell(kind, text, className = "") {
  const made = document.createElement(kind);
  made.textContent = shown(text);
  made.className = className;
  return made;
}

function list(id, entries) {
  element(id).replaceChildren(...entries.map(([name, value]) => {
    const box = document.createElement("div");
    box.append(cell("dt", name), cell("dd", value));
    return box;
  }));
}

function showQueues(hub) {
  const queues = hub.queues;
  list("queues", [
    ["Step", hub.step],
    ["Queued groups", queues.queued_groups],
    ["Queued sequences", queues.queued_sequences],
    ["Buffered groups", queues.buffered_groups],
    ["Formed batches", queues.formed_batches],
    ["Leased batches", queues.leased_batches],
    ["Waiting, MB of JSON", queues.waiting_bytes / 1e6],
    ["In memory, MB", queues.memory_bytes / 1e6],
    ["Policy version", hub.policy_version],
  ]);
}

function showRates(counts, seconds) {
  const rate = (name) => Math.max(0, (counts[name] - before.counts[name]) / seconds);
  list("rates", [
    ["Groups in, 1/s", rate("groups")],
    ["Sequences in, 1/s", rate("sequences")],
    ["Groups out, 1/s", rate("delivered")],
    ["Rejected, 1/s", rate("rejected")],
    ["Sent again, 1/s", rate("repeated")],
    ["Batches again, 1/s", rate("redelivered")],
  ]);
}

function showScores(counts) {
  const count = counts.scored_groups - before.counts.scored_groups;
  if (count > 0) {
    scores.push((counts.score_sum - before.counts.score_sum) / count);
    scores.splice(0, scores.length - MAX_POINTS);
  }
  if (!scores.length) return;
  const low = Math.min(...scores);
  const high = Math.max(...scores);
  const place = (score, index) => {
    const x = (600 * index) / Math.max(1, scores.length - 1);
    return `${x.toFixed(1)},${(110 - (100 * (score - low)) / (high - low || 1)).toFixed(1)}`;
  };
  element("rewards").querySelector("polyline").setAttribute("points", scores.map(place).join(" "));
  element("reward-range").textContent = `${shown(scores.at(-1))} now, ${shown(low)} to ${shown(high)}`;
}

function showEnvironments(environments) {
  element("environments").replaceChildren(...environments.map((one) => {
    const row = document.createElement("tr");
    const state = one.quarantine ? `${one.state}: ${one.quarantine}` : one.state;
    row.append(cell("td", one.name), cell("td", state, one.quarantine ? "quarantined" : ""));
    for (const name of ["weight", "minimum", "group_size", "queued_groups", "buffered_groups", "num_groups", "num_rejected", "mean_score"]) {
      row.append(cell("td", one[name]));
    }
    row.append(cell("td", `${shown(one.silent_seconds)} s ago`));
    return row;
  }));
}

function show(hub) {
  const now = performance.now() / 1000;
  showQueues(hub);
  if (before) {
    showRates(hub.counts, now - before.time);
    showScores(hub.counts);
  }
  showEnvironments(hub.environments);
  before = { counts: hub.counts, time: now };
  say(hub.registration ? `A trainer is registered: batches of ${hub.registration.batch_size} sequences` : "No trainer is registered");
}

function say(text, failed = false) {
  element("state").textContent = text;
  element("state").className = failed ? "failed" : "";
}

async function look() {
  try {
    const answer = await fetch("/hub", { headers: token ? { Authorization: `Bearer ${token}` } : {} });
    element("access").hidden = answer.status !== 401 && answer.status !== 403;
    const content = await answer.json();
    if (answer.ok) show(content);
    else say(content.detail, true);
  } catch (error) {
    say(`The hub does not answer: ${error.message}`, true);
  }
  setTimeout(look, 1000 * SECONDS_BETWEEN);
}

element("access").addEventListener("submit", (event) => {
  event.preventDefault();
  token = element("token").value;
});
look();
