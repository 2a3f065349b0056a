/* Why a step is where it is: who uses it, what was measured, what sharing saves, and the optimizer's reason. */

import { byId, h } from "./dom.js";
import { count, milliseconds, plural, rate, share, whole } from "./format.js";
import { KINDS } from "./plan-model.js";
import { costBars } from "./preview.js";
import { change, state } from "./store.js";

const MOST_QUERIES = 12;

const fact = (name, value) => (value === "–" ? null : [h("dt", {}, name), h("dd", { class: "number" }, value)]);

function facts(node) {
  const { rows_per_second: rows, candidates_per_second: compared } = node;
  if (node.kind === "groups") return [fact("Rows", rate(rows)), fact("Open groups", count(node.cardinality))];
  if (["sink", "window"].includes(node.kind)) return [fact("Rows", rate(rows))];
  if (node.kind !== "join") return [fact("Rows", rate(rows)), fact("Rows held", count(node.cardinality))];
  const found = compared > 0 ? ` (${share(rows / compared)})` : "";
  return [fact("Pairs compared", rate(compared)), fact("Pairs found", `${rate(rows)}${found}`), fact("Time per second", milliseconds((node.load ?? 0) * 1000)), fact("Share of all joins", share(node.part))];
}

function verdict({ cost_shared: shared, cost_apart: apart }) {
  if (!(shared > 0) || !(apart > 0)) return null;
  const times = apart / shared;
  const words = times > 1.005 ? `Shared, it is ${count(times)} times less work than apart.` : times < 0.995 ? `Apart, it would be ${count(1 / times)} times less work.` : "Shared or apart, it is the same work.";
  return [costBars(shared, apart, ["Shared", "Apart"], state.plan), h("p", { class: "quiet" }, words)];
}

function users(node) {
  if (!node.queries.length) return h("p", { class: "quiet" }, "No query uses it.");
  const shown = node.queries.slice(0, MOST_QUERIES);
  const rest = node.queries.length - shown.length;
  return h(
    "div",
    {},
    h("p", { class: "quiet" }, node.queries.length > 1 ? `${plural(node.queries.length, "query", "queries")} use it` : "One query uses it"),
    h("ul", { class: "chips" }, shown.map((name) => h("li", {}, h("button", { type: "button", class: "chip", onclick: () => change({ chosen: name }) }, name))), rest ? h("li", { class: "quiet" }, `and ${rest} more`) : null),
  );
}

/** How much less work a decision leaves, by its own figures. */
export function saved({ "cost before": before, "cost after": after }) {
  const part = before > 0 ? 1 - after / before : 0;
  return part >= 0.005 ? `, which saves ${Math.round(100 * part)} % of their work` : "";
}

/* What the optimizer decided about the queries of a step, as one would say it. */
const REASONS = {
  share_eagerly: ({ figures }) => (!("steps" in figures) ? "Its queries have no join step to share: values are looked up once for all of them." : figures["shared steps"] ? "A new query found steps like its own running, and uses them." : "It began with a query that had nothing in common with others."),
  group_by_cost: ({ changed, figures }) => (changed ? `Its queries were put together anew${saved(figures)}.` : "Its queries stay together: nothing else would be less work."),
  reorder_joins: ({ changed, figures }) => (changed ? `The streams are joined in another order${saved(figures)}.` : "The order in which streams are joined stays: no other would be less work."),
};

function why({ decisions }) {
  if (!decisions?.length) return null;
  const said = decisions.map((decision) => h("p", {}, REASONS[decision.rule]?.(decision) ?? `${decision.what}, because ${decision.why}.`, h("span", { class: "quiet" }, ` After batch ${whole(decision.batch)}.`)));
  return [h("p", { class: "quiet" }, "Why it is here"), h("div", { class: "reason" }, said)];
}

let last = "";

/** Show a node, or hide where there is none; nothing is built anew while the figures stay. */
export function inspect(node, close) {
  const place = byId("inspector");
  const content = JSON.stringify(node);
  if (content === last) return;
  last = content;
  place.hidden = node === null;
  if (node === null) return;
  const inside = place.contains(document.activeElement) ? document.activeElement.textContent : null;
  place.replaceChildren(
    h("div", { class: "inspector-head" }, h("h3", {}, KINDS[node.kind] ?? node.kind), h("button", { type: "button", class: "plain", onclick: close }, "Close")),
    h("div", {}, h("p", { class: "mono what" }, node.label), users(node)),
    h("dl", {}, facts(node).flat()),
    h("div", {}, verdict(node), why(node)),
  );
  if (inside !== null) [...place.querySelectorAll("button")].find((button) => button.textContent === inside)?.focus();
}
