/* Why a step is where it is: who uses it, what was measured, what sharing saves, and the optimizer's reason. */

import { byId, h } from "./dom.js";
import { count, milliseconds, plural, share } from "./format.js";
import { KINDS } from "./plan-model.js";
import { costBars } from "./preview.js";
import { change } from "./store.js";

const MOST_QUERIES = 12;

const fact = (name, value) => (value === "–" ? null : [h("dt", {}, name), h("dd", { class: "number" }, value)]);

function verdict({ cost_shared: shared, cost_apart: apart }) {
  if (!(shared > 0) || !(apart > 0)) return null;
  const saved = apart / shared;
  const words = saved > 1.005 ? `Sharing costs ${count(saved)} times less here than apart.` : saved < 0.995 ? `Apart would cost ${count(1 / saved)} times less here.` : "Shared or apart, it costs the same here.";
  return [costBars(shared, apart), h("p", { class: "quiet" }, words)];
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
    h("div", { class: "inspector-head" }, h("h3", {}, KINDS[node.kind] ?? node.kind, node.group === undefined || node.group === null ? "" : `, group ${node.group}`), h("button", { type: "button", class: "plain", onclick: close }, "Close")),
    h("div", {}, h("p", { class: "mono what" }, node.label), users(node)),
    h("dl", {}, fact("Rows a batch", count(node.rate)), ...(node.kind === "join" ? [fact("Time a batch", milliseconds((node.seconds ?? 0) * 1000)), fact("Share of all joins", share(node.part)), fact("Pairs compared", count(node.candidates))] : []), fact(node.kind === "source" || node.kind === "selection" ? "Rows held" : "Rows found", count(node.cardinality)), fact("Selectivity", share(node.selectivity))),
    h("div", {}, verdict(node), node.reason ? [h("p", { class: "quiet" }, "Why it is here"), h("p", { class: "reason" }, node.reason)] : null),
  );
  if (inside !== null) [...place.querySelectorAll("button")].find((button) => button.textContent === inside)?.focus();
}
