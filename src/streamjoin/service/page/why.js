/* Why something is slow: the batch that runs, and for the chosen query its latency by stage, its steps and its streams. */

import { attribute, byId, h, s, say } from "./dom.js";
import { age, count, milliseconds, names, plural, rate, sentence, share } from "./format.js";
import { headed } from "./plan-model.js";
import { state, watch } from "./store.js";

/** A batch that runs for longer than this, in seconds, is worth a line. */
const LONG = 2;
/* What each stage is, and what to do where it is most of the latency. */
const STAGES = {
  source: ["waiting in the source", "Most of it passes before the source is read: a shorter trigger reads it sooner."],
  read: ["reading", "Most of it is reading and decoding the source."],
  queue: ["waiting for the engine", "Most of it is waiting until the engine has finished earlier batches: look for the most expensive steps."],
  join: ["joining", "Most of it is joining: look at the steps below."],
  store: ["writing the journal", "Most of it is writing the checkpoint: its disk is slow, or batches are large."],
  sink: ["writing to the sink", "Most of it is the sink: it takes rows slowly."],
};

function showRunning({ activity }) {
  const line = byId("running");
  const batch = activity?.running;
  line.hidden = !batch || batch.seconds < LONG;
  if (line.hidden) return;
  attribute(line, "data-stuck", activity.stuck);
  say(line, sentence(activity.words));
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
  return [h("p", {}, STAGES[slowest][1]), h("div", { class: "stack", "aria-hidden": "true" }, parts), h("ul", { class: "stages" }, stages.map(entry))];
}

function table(caption, headings, rows) {
  const cell = (value, index) => (index ? h("td", { class: "number" }, value) : h("th", { scope: "row" }, value));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, headings.map((text, index) => h("th", { scope: "col", class: index ? "number" : null }, text)))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell))))));
}

/** The join steps of a query, the slowest first. */
function steps(query) {
  const joins = (state.plan?.nodes ?? []).filter(({ kind, queries }) => kind === "join" && queries.includes(query.name));
  if (!joins.length) return [h("p", { class: "quiet" }, "It has no join step in the plan.")];
  const rows = joins
    .sort((a, b) => (b.seconds ?? 0) - (a.seconds ?? 0))
    .map((node) => {
      const others = new Set(node.queries).size - 1;
      const [title, rest] = headed(node);
      return [[title, h("span", { class: "quiet mono" }, rest)], milliseconds((node.seconds ?? 0) * 1000), count(node.candidates), count(node.rate), others ? plural(others, "other") : "nobody"];
    });
  return [table(`Join steps of ${query.name}`, ["Step", "Time a batch", "Pairs compared", "Rows a batch", "Shared with"], rows)];
}

function streams(query) {
  const used = new Set((state.plan?.nodes ?? []).filter(({ kind, queries }) => kind === "source" && queries.includes(query.name)).map(({ label }) => label));
  const rows = (state.streams ?? []).filter(({ name }) => used.has(name)).map((stream) => [stream.name, rate(stream.rows_per_second), stream.lag_seconds === null ? "–" : age(stream.lag_seconds), share(stream.backpressure)]);
  return rows.length ? [table(`Streams of ${query.name}`, ["Stream", "Rows", "Lag", "Held back"], rows)] : [];
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
