/* What a query would give, share and cost, before it is created. */

import { h } from "./dom.js";
import { count, names, plural, sentence } from "./format.js";

const number = (value) => (Array.isArray(value) ? value.length : (value ?? 0));

function lead({ shares_with, shared_joins, new_joins }) {
  const [shared, fresh] = [number(shared_joins), number(new_joins)];
  if (!shares_with?.length) return `Shares nothing: ${plural(fresh || shared, "new join step")}.`;
  const steps = shared ? `${fresh ? `${shared} of ${plural(shared + fresh, "join step")}` : plural(shared, "join step")} ` : "";
  return `Would share ${steps}with ${names(shares_with)}.`;
}

/** Two bars on one scale. */
export function costBars(shared, apart, unit = "a batch") {
  const most = Math.max(shared ?? 0, apart ?? 0, 1e-9);
  const row = (name, value, kind) => {
    const fill = h("span");
    fill.style.width = `${Math.max(1, (100 * (value ?? 0)) / most)}%`;
    return [h("span", { class: "quiet" }, name), h("span", { class: `bar ${kind}`, "aria-hidden": "true" }, fill), h("span", { class: "number" }, `${count(value)} ${unit}`)];
  };
  return h("div", { class: "costs" }, row("Shared", shared, "is-shared"), row("Apart", apart, ""));
}

/** From so many partial rows a batch on, a query that costs more than all others together is worth a question. */
const EXPENSIVE = 100_000;

/** Why one should think twice before creating a query; null if there is no reason. */
export function concernOf({ warning, needs_allow_scan: scans, cost_shared: added }, plan) {
  if (scans) return sentence(warning);
  const now = plan?.cost_shared ?? 0;
  if (!(added > EXPENSIVE && added > now)) return null;
  return now > 0 ? `It adds ${count(added)} partial rows a batch; all queries together have ${count(now)} now.` : `It adds ${count(added)} partial rows a batch.`;
}

export function previewOf(preview) {
  const sharing = preview.shares_with?.length > 0;
  const columns = (preview.columns ?? []).map(([name, type]) => h("li", { class: "chip" }, name, h("span", { class: "type" }, type)));
  const known = preview.cost_shared > 0 || preview.cost_apart > 0;
  return h(
    "div",
    { class: "preview" },
    h("p", { class: "lead" }, h("span", { class: "badge", "data-state": sharing ? "shared" : "running" }, sharing ? "shared" : "valid"), lead(preview)),
    known ? costBars(preview.cost_shared, preview.cost_apart) : h("p", { class: "quiet" }, "No batch has been measured, so there is no cost yet."),
    preview.warning && !preview.needs_allow_scan ? h("p", { class: "warning" }, sentence(preview.warning)) : null,
    h("div", {}, h("p", { class: "quiet" }, `Gives ${plural(columns.length, "column")}`), h("ul", { class: "chips" }, columns)),
    preview.text ? h("details", {}, h("summary", {}, "The plan as text"), h("pre", {}, preview.text)) : null,
  );
}
