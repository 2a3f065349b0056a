/* Why something is slow: the batch that runs, and for the chosen query its latency by stage, its steps and its streams. */

import { attribute, byId, h, s, say } from "./dom.js";
import { age, lag, milliseconds, names, percent, plural, rate, sentence, share } from "./format.js";
import { headed } from "./plan-model.js";
import { state, watch } from "./store.js";

/** A batch that runs for longer than this, in seconds, is worth a line. */
const LONG = 2;
/* What each stage is, and what to do where it is most of the latency. */
const STAGES = {
  source: ["waiting in the source", (trigger) => (trigger ? `Most of it passes before the source is read, which is once in ${every(trigger)} (trigger): a shorter one reads it sooner.` : "Most of it passes before the source is read, which happens as soon as the engine is free: look at how long batches take.")],
  read: ["reading", "Most of it is reading and decoding the source."],
  queue: ["waiting for the engine", "Most of it is waiting until the engine has finished earlier batches: look for the most expensive steps."],
  join: ["joining", "Most of it is joining: look at the steps below."],
  store: ["writing the journal", "Most of it is writing the checkpoint: its disk is slow, or batches are large."],
  sink: ["writing to the sink", "Most of it is the sink: it takes rows slowly."],
};

/** The service gives it in milliseconds. */
function every(trigger) {
  const ms = Number.parseInt(trigger, 10);
  return ms === 1000 ? "a second" : /^\d+ milliseconds$/.test(trigger) ? milliseconds(ms) : trigger;
}

function showRunning({ activity }) {
  const line = byId("running");
  const long = activity?.running?.seconds >= LONG;
  const behind = activity?.catching_up;
  line.hidden = !long && !behind;
  if (line.hidden) return;
  attribute(line, "data-stuck", activity.stuck);
  const progress = behind ? `Catching up: ${percent(behind.share)}${behind.seconds === null ? "" : `, ${age(behind.seconds)}`}.` : "";
  say(line, [progress, long ? sentence(activity.words) : ""].filter(Boolean).join(" "));
}

/** The stages of a query's latency as one bar, and in words. */
function latency(query) {
  const stages = Object.entries(query.latency ?? {}).filter(([stage]) => stage in STAGES);
  const all = stages.reduce((sum, [, ms]) => sum + ms, 0);
  if (!(all > 0)) return [h("p", { class: "quiet" }, "No rows have been delivered yet, so there is no latency to divide.")];
  const [slowest] = stages.reduce((most, stage) => (stage[1] > most[1] ? stage : most));
  const parts = stages.map(([stage, ms]) => {
    const part = h("span", { class: `stage is-${stage}` });
    part.style.flexGrow = ms / all;
    return part;
  });
  const entry = ([stage, ms]) => h("li", {}, s("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, s("rect", { class: `stage is-${stage}`, width: 10, height: 10, rx: 2 })), h("span", {}, sentence(STAGES[stage][0]).replace(/\.$/, "")), h("b", { class: "number" }, milliseconds(ms)), h("span", { class: "number quiet" }, share(ms / all)));
  const [, advice] = STAGES[slowest];
  return [h("p", { class: "advice" }, typeof advice === "function" ? advice(state.info?.trigger) : advice), h("div", { class: "stack", "aria-hidden": "true" }, parts), h("ul", { class: "stages" }, stages.map(entry))];
}

function table(caption, headings, rows) {
  const cell = (value, index) => (index ? h("td", { class: "number", "data-label": headings[index] }, value) : h("th", { scope: "row" }, value));
  return h("div", { role: "region", "aria-label": caption }, h("table", { class: "cards" }, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, headings.map((text, index) => h("th", { scope: "col", class: index ? "number" : null }, text)))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell))))));
}

const order = { of: null, places: new Map() };

/** The join steps of a query, those that were the slowest when it was chosen first. */
function steps(query) {
  const joins = (state.plan?.nodes ?? []).filter(({ kind, queries }) => kind === "join" && queries.includes(query.name));
  if (!joins.length) return [h("p", { class: "quiet" }, query.state === "running" ? "It has no join step that others could share: what it does itself is in Joining." : "It has no join step now.")];
  const known = joins.every(({ id }) => order.places.has(id));
  if (order.of !== query.name || !known) {
    const slowest = [...joins].sort((a, b) => (b.load ?? 0) - (a.load ?? 0));
    Object.assign(order, { of: query.name, places: new Map(slowest.map(({ id }, index) => [id, index])) });
  }
  const place = (id) => order.places.get(id);
  const rows = joins
    .sort((a, b) => place(a.id) - place(b.id))
    .map((node) => {
      const others = new Set(node.queries).size - 1;
      const [title, rest] = headed(node);
      return [[title, h("span", { class: "quiet mono" }, rest)], milliseconds((node.load ?? 0) * 1000), rate(node.candidates_per_second), rate(node.rows_per_second), others ? plural(others, "query", "queries") : "none"];
    });
  return [table(`Join steps of ${query.name}`, ["Step", "Time per second", "Pairs compared", "Pairs found", "Shared with"], rows)];
}

function streams(query) {
  const used = new Set((state.plan?.nodes ?? []).filter(({ kind, queries }) => kind === "source" && queries.includes(query.name)).map(({ label }) => label));
  const rows = (state.streams ?? []).filter(({ name }) => used.has(name)).map((stream) => [stream.name, rate(stream.rows_per_second), lag(stream.lag_seconds), share(stream.backpressure)]);
  return rows.length ? [table(`Streams of ${query.name}`, ["Stream", "Rows", "Behind", "Waited for the engine"], rows)] : [];
}

let shown = "";

function showChosen() {
  const query = state.queries?.find(({ name }) => name === state.chosen);
  byId("why").hidden = !query;
  if (!query) return;
  say(byId("why-title"), `Where the time of ${query.name} goes`);
  say(byId("why-summary"), query.latency_ms === null ? "" : `${milliseconds(query.latency_ms)} from arrival to sink`);
  const waits = state.activity?.running?.queries.includes(query.name) && state.activity.running.seconds >= LONG ? [h("p", { class: "warning" }, `The running batch is in its step ${names(state.activity.running.step, 9)}.`)] : [];
  const parts = [h("div", {}, waits, latency(query)), h("div", {}, steps(query), streams(query))];
  // The same again leaves selections and the focus where they are.
  const content = parts.map(({ textContent }) => textContent).join();
  if (content === shown && byId("why-body").children.length) return;
  const inside = byId("why-body").contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  shown = content;
  byId("why-body").replaceChildren(...parts);
  if (inside) byId("why-body").querySelector(`[aria-label="${CSS.escape(inside)}"]`)?.focus();
}

export function startWhy() {
  watch(["activity"], showRunning);
  watch(["chosen", "queries", "plan", "streams", "activity"], showChosen);
}
