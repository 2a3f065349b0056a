/* What a query would give, share and cost, before it is created. */

import { h } from "./dom.js";
import { count, names, plural, sentence, whole } from "./format.js";
import { rowsTable } from "./rows-table.js";

function lead({ streams, shares_with, new_joins, shared_joins }) {
  const pass = shares_with?.length ? `, in one pass with ${names(shares_with)}` : "";
  if (!new_joins && !shared_joins) return streams?.length > 1 ? `Has no join step to share; tuples are selected${pass || " as they come"}.` : `Selects tuples of one stream as they come${pass}.`;
  if (!shares_with?.length) return "Shares nothing: no other query has its joins.";
  return `Would share ${new_joins ? "some of its joins" : "all its joins"} with ${names(shares_with)}.`;
}

/** What the optimizer expects of a batch of each stream, per second where it is known how often one comes. */
function matches(value, plan) {
  const sources = (plan?.nodes ?? []).filter(({ kind, rate }) => kind === "source" && rate > 0);
  const sum = (field) => sources.reduce((all, source) => all + (source[field] ?? 0), 0);
  const pace = sources.length ? sum("rows_per_second") / sum("rate") : 0;
  return pace > 0 ? `about ${count(value * pace)} matches per second` : `${count(value)} matches a batch`;
}

/** Two bars on one scale. */
export function costBars(shared, apart, words, plan) {
  const most = Math.max(shared ?? 0, apart ?? 0, 1e-9);
  const row = (name, value, kind) => {
    const fill = h("span");
    fill.style.width = `${Math.max(1, (100 * (value ?? 0)) / most)}%`;
    return [h("span", { class: "quiet" }, name), h("span", { class: `bar ${kind}`, "aria-hidden": "true" }, fill), h("span", { class: "number" }, matches(value ?? 0, plan))];
  };
  return h("div", { class: "costs" }, row(words[0], shared, "is-shared"), row(words[1], apart, ""));
}

/** From this number of matches a batch on, a query that costs more than all others together is worth a question. */
const EXPENSIVE = 100_000;

/** Why one should think twice before creating a query; null if there is no reason. */
export function concernOf({ warning, needs_allow_scan: scans, cost_shared: added }, plan) {
  if (scans) return sentence(warning);
  const now = plan?.cost_shared ?? 0;
  if (!(added > EXPENSIVE && added > now)) return null;
  return now > 0 ? `It adds ${matches(added, plan)}; all queries together find ${matches(now, plan)}.` : `It adds ${matches(added, plan)}.`;
}

/** Rows that the newest tuples give, and how many of those there are. */
function sampled({ columns = [], rows = [], rows_found: found, tuples = {} }) {
  const { table, show } = rowsTable("Rows that the newest tuples would give", columns);
  show([...rows].reverse());
  const of = Object.entries(tuples).map(([name, number]) => `${whole(number)} of ${name}`);
  const words = found === null || found === undefined ? "" : ` The newest tuples (${names(of, 9)}) give ${found ? plural(found, "row") : "none"}.`;
  return h("div", { class: "sample" }, h("p", { class: "quiet" }, `Its rows have ${plural(columns.length, "column")}.${words}`), h("div", { class: "scroll" }, table));
}

export function previewOf(preview, plan) {
  const sharing = preview.shares_with?.length > 0;
  const joins = preview.new_joins + preview.shared_joins > 0;
  const known = preview.cost_shared > 0 || preview.cost_apart > 0;
  const cost = known ? costBars(preview.cost_shared, preview.cost_apart, ["It adds", "By itself"], plan) : h("p", { class: "quiet" }, "No batch has been measured, so there is no cost yet.");
  return h(
    "div",
    { class: "preview" },
    h("p", { class: "lead" }, h("span", { class: "badge", "data-state": sharing ? "shared" : "running" }, sharing ? "shared" : "valid"), lead(preview)),
    joins ? cost : null,
    preview.warning && !preview.needs_allow_scan ? h("p", { class: "warning" }, sentence(preview.warning)) : null,
    sampled(preview),
  );
}
