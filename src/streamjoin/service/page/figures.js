/* The strip at the top: what the engine does right now. */

import { byId, h, say } from "./dom.js";
import { bytes, count, milliseconds, plural, whole } from "./format.js";
import { series, watch } from "./store.js";

const RECENT_SECONDS = 5;
const RECENT_SAMPLES = 100;

function quantile(values, part) {
  if (!values.length) return null;
  return [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(part * values.length))];
}

function rates({ samples }) {
  const recent = samples.slice(-RECENT_SAMPLES);
  return ["rows_in", "rows_out"].map((field) => series(recent, field, undefined, RECENT_SECONDS).at(-1) ?? null);
}

/** What all queries cost together, and what they would cost each on its own. */
export function planCosts(plan) {
  if (!plan) return null;
  const sum = (field) => plan.nodes.reduce((all, node) => all + (node[field] ?? 0), 0);
  const shared = plan.cost_shared ?? sum("cost_shared");
  const apart = plan.cost_apart ?? sum("cost_apart");
  return shared > 0 && apart > 0 ? { shared, apart } : null;
}

function figures(state) {
  const { samples, queries, plan, streams } = state;
  const [rowsIn, rowsOut] = rates(state);
  const last = samples.at(-1);
  const times = samples.slice(-60).map((sample) => sample.seconds * 1000);
  const running = (queries ?? []).filter((query) => query.state === "running").length;
  const costs = planCosts(plan);
  const [size, unit] = bytes(last?.state_bytes);
  const batch = milliseconds(last ? last.seconds * 1000 : null).split(" ");
  return [
    ["Rows in", count(rowsIn), rowsIn === null ? "" : "/s", streams ? `from ${plural(streams.length, "stream")}` : ""],
    ["Rows out", count(rowsOut), rowsOut === null ? "" : "/s", queries ? `to ${plural(queries.length, "query", "queries")}` : ""],
    ["Batch time", batch[0], batch[1] ?? "", times.length ? `95 % within ${milliseconds(quantile(times, 0.95))}` : ""],
    ["Queries running", queries ? whole(running) : "–", queries ? `of ${whole(queries.length)}` : "", others(queries)],
    ["Saved by sharing", costs ? whole(Math.max(0, 100 * (1 - costs.shared / costs.apart))) : "–", costs ? "%" : "", costs ? `${count(costs.shared)} partial rows, not ${count(costs.apart)}` : "nothing measured yet"],
    ["State held", size, unit, last?.partitions ? `in ${plural(last.partitions, "partition")}` : ""],
  ];
}

function others(queries) {
  const paused = (queries ?? []).filter((query) => query.state === "paused").length;
  const failed = (queries ?? []).filter((query) => query.state === "failed").length;
  return [failed && `${failed} failed`, paused && `${paused} paused`].filter(Boolean).join(", ");
}

export function startFigures() {
  const strip = byId("figures");
  const cells = figures({ samples: [], queries: null, plan: null, streams: null }).map(([name]) => {
    const [value, unit] = [h("span"), h("span", { class: "unit" })];
    const note = h("p", { class: "note" });
    strip.append(h("div", { class: "figure live" }, h("p", { class: "name" }, name), h("p", { class: "value" }, value, unit), note));
    return [value, unit, note];
  });
  const show = (state) => figures(state).forEach(([, ...texts], index) => texts.forEach((text, part) => say(cells[index][part], text)));
  watch(["samples", "queries", "plan", "streams"], show);
  show({ samples: [], queries: null, plan: null, streams: null });
}
