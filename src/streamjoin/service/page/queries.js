/* The queries: state, rate, latency, age; choosing one shows its rows, pausing and dropping ask the service. */

import { Problem, call, queryPath } from "./api.js";
import { announce, attribute, byId, empty, h, reconcile, s, say, skeleton } from "./dom.js";
import { age, count, milliseconds, plural, rate, sentence, share } from "./format.js";
import { refreshSoon } from "./connection.js";
import { SPARK_SAMPLES, drawSparkline, sparkline } from "./sparkline.js";
import { DRAWN_SECONDS, change, putQuery, removeQuery, series, state, watch } from "./store.js";
import { exampleButton } from "./examples.js";

/* A state is a word and a shape; the colour only repeats it. */
const SHAPES = {
  running: "M2 1l7 4-7 4Z",
  paused: "M2 1h2v8H2ZM6 1h2v8H6Z",
  degraded: "M5 0 10 9.5H0ZM4.4 3.4v3h1.2v-3ZM4.4 7.2v1.2h1.2V7.2Z",
  failed: "M1 2l1-1 3 3 3-3 1 1-3 3 3 3-1 1-3-3-3 3-1-1 3-3Z",
  pending: "M5 0a5 5 0 1 0 0 10A5 5 0 0 0 5 0Zm0 1.5a3.5 3.5 0 1 1 0 7 3.5 3.5 0 0 1 0-7Z",
};
const MANY = 8;
/* Heading, class, what it sorts by. The first click on a figure shows the largest first. */
const HEADINGS = [
  ["Query", null, (query) => query.name],
  ["State", null, (query) => query.state, "state"],
  ["Rows/s", "number", (query) => query.rows_per_second ?? 0, "rate"],
  ["Rows per second over the last minute", "spark-cell"],
  ["Latency", "number", (query) => query.latency_ms ?? 0, "latency"],
  ["Cost", "number", (query) => costs.get(query.name) ?? 0, "cost"],
  ["Rows", "number", (query) => query.rows, "rows"],
  ["Age", "number", (query) => Date.now() / 1000 - query.created_at, "age"],
  ["Actions", "acts"],
];
const NUMBERS = new Set(["rate", "latency", "cost", "rows", "age"]);
/** An order by figures is kept this long, and while somebody points into the list: what is about to be pressed stays. */
const ORDER_MS = 10_000;
const STOPPED = new Set(["paused", "failed"]);

const sorting = { by: (query) => query.created_at, down: false, heading: null, at: 0, places: new Map() };
let costs = new Map();

const shape = (name) => s("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, s("path", { d: SHAPES[name] ?? SHAPES.pending, fill: "currentColor" }));

export function badge(name) {
  return h("span", { class: "badge", "data-state": name }, shape(name), name);
}

function table(changed) {
  const headings = HEADINGS.map(([text, kind, by, part]) => {
    if (!by) return h("th", { scope: "col", class: kind }, h("span", { class: "unseen" }, text));
    const heading = h("th", { scope: "col", class: [kind, part].filter(Boolean).join(" ") }, h("button", { type: "button", class: "sort", onclick: () => sort(heading, by, kind === "number", changed) }, text));
    return heading;
  });
  return h("div", { class: "queries-scroll" }, h("table", { class: "cards queries-table" }, h("caption", { class: "unseen" }, "Queries and their results"), h("thead", {}, h("tr", {}, headings)), h("tbody")));
}

function sort(heading, by, down, changed) {
  const again = sorting.heading === heading;
  sorting.heading?.removeAttribute("aria-sort");
  Object.assign(sorting, { by, heading, down: again ? !sorting.down : down, at: 0 });
  heading.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
  changed();
}

function compared(one, other) {
  const [a, b] = [sorting.by(one), sorting.by(other)];
  const order = typeof a === "string" ? a.localeCompare(b) : a - b;
  return (sorting.down ? -order : order) || one.created_at - other.created_at || one.name.localeCompare(other.name);
}

/** The queries in their order. By figures it is made anew now and then; a query that is new comes last until then. */
function ordered(queries, list) {
  const now = Date.now();
  const still = sorting.heading && (now - sorting.at < ORDER_MS || (sorting.at && list.matches(":hover, :focus-within")));
  if (!still) {
    sorting.at = now;
    sorting.places = new Map([...queries].sort(compared).map(({ name }, place) => [name, place]));
  }
  const place = ({ name }) => sorting.places.get(name) ?? Number.MAX_SAFE_INTEGER;
  return queries.sort((one, other) => place(one) - place(other));
}

/** Each query's part of the plan's cost: of a shared step an equal part for each of its queries. */
function costsOf(plan) {
  const found = new Map();
  let total = 0;
  for (const { cost_shared: cost, queries } of plan?.nodes ?? []) {
    const users = [...new Set(queries ?? [])];
    if (!cost || !users.length) continue;
    total += cost;
    for (const name of users) found.set(name, (found.get(name) ?? 0) + cost / users.length);
  }
  return new Map([...found].map(([name, cost]) => [name, cost / total]));
}

function created(query) {
  const { name } = query;
  const cell = (kind, label) => h("td", { class: NUMBERS.has(kind) ? "number" : kind, "data-part": kind, "data-label": label });
  const row = h(
    "tr",
    { class: "live", onclick: (event) => event.target.closest("button") || getSelection().toString() || choose(name), onmouseenter: () => change({ hovered: name }), onmouseleave: () => change({ hovered: null }) },
    h("th", { scope: "row" }, h("button", { type: "button", class: "entry", onclick: () => choose(name) }, name), h("p", { class: "sql", title: query.sql }, query.sql.replace(/\s+/g, " ")), h("span", { class: "problem", "data-part": "error", hidden: true })),
    cell("state"),
    cell("rate", "Rows/s"),
    h("td", { class: "spark-cell" }, sparkline()),
    cell("latency", "Latency"),
    cell("cost", "Cost"),
    cell("rows", "Rows"),
    cell("age", "Age"),
    h(
      "td",
      { class: "acts" },
      h(
        "div",
        { class: "actions" },
        h("button", { type: "button", class: "plain", "data-part": "pause", onclick: () => pauseOrResume(name) }),
        h("button", { type: "button", class: "plain", "aria-label": `Drop ${name}`, onclick: (event) => confirmDrop(name, event.currentTarget) }, "Drop"),
      ),
    ),
  );
  return row;
}

/** What is open of a grouped query, and what it waits for; null for others. */
function openGroups(open) {
  if (!open) return null;
  if (!open.windows) return open.first_due === null ? "No window is open yet." : `First window from ${open.first_window}, due at ${open.first_due}.`;
  return `${plural(open.windows, "window")} open from ${open.oldest} with ${plural(open.groups, "group")}, held back by ${open.held_back_by}.`;
}

/** Why a query does not do what it should, in sentences; nothing if it does. */
export function problemOf(query) {
  // Rows also wait for a file that they share with those of later batches: only with an error is that a problem.
  const waiting = query.error && query.rows_undelivered ? `Waiting for the sink: ${plural(query.rows_undelivered, "row")}.` : "";
  const missed = query.rows_missed ? `Missed because the spool was full: ${plural(query.rows_missed, "row")}.` : "";
  const again = query.retry_at ? `Next attempt at ${new Date(query.retry_at * 1000).toLocaleTimeString()}.` : "";
  return [sentence(query.error), waiting, missed, again].filter(Boolean).join(" ");
}

function updated(row, query) {
  const part = (name) => row.querySelector(`[data-part="${name}"]`);
  attribute(row, "data-chosen", state.chosen === query.name);
  attribute(row, "data-failed", query.state === "failed" || query.state === "degraded");
  attribute(row.querySelector(".entry"), "aria-pressed", String(state.chosen === query.name));
  if (part("state").dataset.state !== query.state) {
    part("state").dataset.state = query.state;
    part("state").replaceChildren(badge(query.state));
  }
  const error = problemOf(query);
  part("error").hidden = !error;
  say(part("error"), error);
  say(part("rate"), rate(query.rows_per_second).replace("/s", ""));
  say(part("latency"), milliseconds(query.latency_ms));
  const stages = Object.entries(query.latency ?? {}).map(([stage, ms]) => `${stage} ${milliseconds(ms)}`);
  attribute(part("latency"), "title", stages.length ? stages.join(", ") : null);
  say(part("cost"), costs.has(query.name) ? share(costs.get(query.name)) : "");
  say(part("rows"), count(query.rows));
  attribute(part("rows"), "title", openGroups(query.groups));
  say(part("age"), age(Date.now() / 1000 - query.created_at));
  const stopped = STOPPED.has(query.state);
  say(part("pause"), stopped ? "Resume" : "Pause");
  attribute(part("pause"), "aria-label", `${stopped ? "Resume" : "Pause"} ${query.name}`);
  part("pause").disabled = query.state === "pending";
  drawSparkline(row.querySelector(".spark"), series(state.samples.slice(-SPARK_SAMPLES), "rows_out", query.name, DRAWN_SECONDS));
}

function choose(name) {
  const chosen = state.chosen === name ? null : name;
  change({ chosen });
  if (chosen) showRows();
}

/** After the panel is there: choosing is told at once, showing comes a turn later. */
export const showRows = () => setTimeout(() => byId("rows").scrollIntoView({ block: "nearest" }));

async function pauseOrResume(name) {
  const paused = STOPPED.has(state.queries.find((query) => query.name === name)?.state);
  try {
    const answer = await call("POST", queryPath(name, paused ? "/resume" : "/pause"));
    if (answer?.name) putQuery(answer);
    announce(`${name} ${paused ? "resumed" : "paused"}.`);
    refreshSoon();
  } catch (error) {
    announce(`${name} could not be ${paused ? "resumed" : "paused"}: ${error.message}`);
  }
}

/** The first query in the list that is not `name`: an answer from before the drop may show that one again for a moment. */
function otherEntry(name) {
  const entries = [...document.querySelectorAll("#queries .entry")];
  return entries.find((entry) => entry.closest("[data-key]")?.dataset.key !== name);
}

/** Ask first; afterwards the focus goes back to where it was, or to the next best place. */
export function confirmDrop(name, opener) {
  const dialog = byId("drop-dialog");
  const problem = byId("drop-problem");
  const query = state.queries.find((known) => known.name === name);
  byId("drop-title").textContent = `Drop ${name}?`;
  byId("drop-text").textContent = `It has given ${plural(query?.rows ?? 0, "row")}. It stops at the next batch and can't be brought back; steps that other queries share stay.`;
  problem.hidden = true;
  const yes = byId("drop-yes");
  yes.disabled = false;
  yes.onclick = async () => {
    yes.disabled = true;
    try {
      await call("DELETE", queryPath(name));
    } catch (error) {
      if (!(error instanceof Problem && error.status === 404)) {
        problem.hidden = false;
        problem.textContent = `It could not be dropped: ${error.message}`;
        yes.disabled = false;
        return;
      }
    }
    dialog.close("dropped");
    removeQuery(name);
    refreshSoon();
    announce(`${name} dropped.`);
  };
  dialog.returnValue = "";
  dialog.onclose = () => {
    // The row of a dropped query may still be there, and would take the focus with it.
    if (dialog.returnValue !== "dropped" && opener?.isConnected) opener.focus();
    else (otherEntry(name) ?? byId("sql")).focus();
  };
  dialog.showModal();
}

function summary(queries, shown) {
  const running = queries.filter((query) => query.state === "running").length;
  if (shown < queries.length) return `${shown} of ${queries.length} found`;
  const degraded = queries.filter((query) => query.state === "degraded").length;
  return queries.length ? `${running} of ${queries.length} running${degraded ? `, ${degraded} degraded` : ""}` : "";
}

/** A field to find queries by, where there are too many to look through. */
function finder(changed) {
  const field = h("input", { type: "search", class: "find", placeholder: "Find a query", "aria-label": "Find a query by its name or SQL", oninput: changed, hidden: true });
  byId("queries-tools").append(field);
  return {
    show: (many) => (field.hidden = !many && !field.value),
    fits: ({ name, sql }) => `${name} ${sql}`.toLowerCase().includes(field.value.trim().toLowerCase()),
  };
}

export function startQueries() {
  const body = byId("queries-body");
  const list = table(() => show(state));
  body.append(skeleton());
  const find = finder(() => show(state));
  const show = ({ queries, streams, plan }) => {
    if (queries === null) return;
    costs = costsOf(plan);
    find.show(queries.length > MANY);
    const found = queries.filter(find.fits);
    say(byId("queries-summary"), summary(queries, found.length));
    if (!queries.length) {
      if (body.firstChild?.className !== "empty") {
        body.replaceChildren(empty("No queries yet", "Write one in the editor: its rows appear here, and what it shares with others in the plan."));
      }
      const nothing = body.firstChild;
      if (streams?.length && !nothing.querySelector("button")) nothing.append(exampleButton("Start from an example"));
      return;
    }
    if (body.firstChild !== list) body.replaceChildren(list);
    reconcile(list.querySelector("tbody"), ordered(found, list), (query) => query.name, created, updated);
  };
  watch(["queries", "samples", "chosen", "streams", "plan"], show);
}
