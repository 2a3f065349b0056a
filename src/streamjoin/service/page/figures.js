/* The strip at the top: what the engine does right now. */

import { byId, h, say } from "./dom.js";
import { bytes, count, milliseconds, percent, plural, rate, whole } from "./format.js";
import { series, watch } from "./store.js";

const RECENT_SECONDS = 5;
const RECENT_SAMPLES = 100;
const PACE_SECONDS = 20;

function quantile(values, part) {
  if (!values.length) return null;
  return [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(part * values.length))];
}

function rates({ samples }) {
  const recent = samples.slice(-RECENT_SAMPLES);
  return ["rows_in", "rows_out"].map((field) => series(recent, field, undefined, RECENT_SECONDS).at(-1) ?? null);
}

/** How often a batch ends, as it was lately. */
function pace(samples) {
  const recent = samples.filter(({ at }) => at > samples.at(-1).at - PACE_SECONDS);
  if (recent.length < 2) return "";
  const seconds = (recent.at(-1).at - recent[0].at) / (recent.length - 1);
  return seconds >= 0.95 ? `, one in ${count(seconds)} s` : `, ${count(1 / seconds)} per second`;
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
  return [
    ["Rows in", rate(rowsIn), streams ? `from ${plural(streams.length, "stream")}` : ""],
    ["Rows out", rate(rowsOut), queries ? `to ${plural(queries.length, "query", "queries")}` : ""],
    ["Batch time", milliseconds(last ? last.seconds * 1000 : null), times.length ? `95 % within ${milliseconds(quantile(times, 0.95))}${pace(samples)}` : ""],
    ["Queries running", queries ? `${whole(running)} of ${whole(queries.length)}` : "–", others(queries)],
    ["Saved by sharing", costs ? percent(Math.max(0, 1 - costs.shared / costs.apart)) : "–", costs ? sharing(costs) : "nothing measured yet"],
    ["State held", bytes(last?.state_bytes), last?.partitions ? `in ${plural(last.partitions, "partition")}` : ""],
  ];
}

function sharing({ shared, apart }) {
  const times = count(apart / shared);
  return apart > 1.005 * shared ? `${times === "1" ? "little" : `${times} times`} less work than each apart` : "no query shares its work";
}

function others(queries) {
  const paused = (queries ?? []).filter((query) => query.state === "paused").length;
  const failed = (queries ?? []).filter((query) => query.state === "failed").length;
  const degraded = (queries ?? []).filter((query) => query.state === "degraded").length;
  return [degraded && `${degraded} degraded`, failed && `${failed} failed`, paused && `${paused} paused`].filter(Boolean).join(", ");
}

export function startFigures() {
  const strip = byId("figures");
  const cells = figures({ samples: [], queries: null, plan: null, streams: null }).map(([name]) => {
    const [value, note] = [h("p", { class: "value" }), h("p", { class: "note" })];
    strip.append(h("div", { class: "figure live" }, h("p", { class: "name" }, name), value, note));
    return [value, note];
  });
  const show = (state) => figures(state).forEach(([, ...texts], index) => texts.forEach((text, part) => say(cells[index][part], text)));
  watch(["samples", "queries", "plan", "streams"], show);
  show({ samples: [], queries: null, plan: null, streams: null });
}
