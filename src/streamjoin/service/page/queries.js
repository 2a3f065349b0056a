/* The queries: state, rate, latency, age; choosing one shows its rows, pausing and dropping ask the service. */

import { Problem, call, queryPath } from "./api.js";
import { announce, attribute, byId, empty, h, reconcile, s, say, skeleton } from "./dom.js";
import { age, count, milliseconds, plural, rate, sentence } from "./format.js";
import { refreshSoon } from "./connection.js";
import { SPARK_SAMPLES, drawSparkline, sparkline } from "./sparkline.js";
import { change, putQuery, removeQuery, series, state, watch } from "./store.js";
import { exampleButton } from "./examples.js";

/* A state is a word and a shape; the colour only repeats it. */
const SHAPES = {
  running: "M2 1l7 4-7 4Z",
  paused: "M2 1h2v8H2ZM6 1h2v8H6Z",
  failed: "M1 2l1-1 3 3 3-3 1 1-3 3 3 3-1 1-3-3-3 3-1-1 3-3Z",
  pending: "M5 0a5 5 0 1 0 0 10A5 5 0 0 0 5 0Zm0 1.5a3.5 3.5 0 1 1 0 7 3.5 3.5 0 0 1 0-7Z",
};
const MANY = 8;
const HEADINGS = [["Query"], ["State"], ["Rows/s", "number"], ["", "spark-cell", "Rows per second over the last minute"], ["Latency", "number"], ["Rows", "number"], ["Age", "number"], ["", "acts", "Actions"]];

const shape = (name) => s("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, s("path", { d: SHAPES[name] ?? SHAPES.pending, fill: "currentColor" }));

export function badge(name) {
  return h("span", { class: "badge", "data-state": name }, shape(name), name);
}

function table() {
  const headings = HEADINGS.map(([text, kind, unseen]) => h("th", { scope: "col", class: kind }, text || h("span", { class: "unseen" }, unseen)));
  return h("div", { class: "queries-scroll" }, h("table", { class: "queries-table" }, h("caption", { class: "unseen" }, "Queries and their results"), h("thead", {}, h("tr", {}, headings)), h("tbody")));
}

function created(query) {
  const { name } = query;
  const cell = (kind, label) => h("td", { class: kind === "rate" || kind === "latency" || kind === "rows" || kind === "age" ? "number" : kind, "data-part": kind, "data-label": label });
  const row = h(
    "tr",
    { class: "live", onmouseenter: () => change({ hovered: name }), onmouseleave: () => change({ hovered: null }) },
    h("th", { scope: "row" }, h("button", { type: "button", class: "entry", onclick: () => choose(name) }, name), h("span", { class: "sql-line", title: query.sql }, query.sql.replace(/\s+/g, " ")), h("span", { class: "problem", "data-part": "error", hidden: true })),
    cell("state"),
    cell("rate", "Rows/s"),
    h("td", { class: "spark-cell" }, sparkline()),
    cell("latency", "Latency"),
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

function updated(row, query) {
  const part = (name) => row.querySelector(`[data-part="${name}"]`);
  attribute(row, "data-chosen", state.chosen === query.name);
  attribute(row.querySelector(".entry"), "aria-pressed", String(state.chosen === query.name));
  if (part("state").dataset.state !== query.state) {
    part("state").dataset.state = query.state;
    part("state").replaceChildren(badge(query.state));
  }
  const waiting = query.rows_undelivered ? `Waiting for the sink: ${plural(query.rows_undelivered, "row")}.` : "";
  const missed = query.rows_missed ? `Missed because the spool was full: ${plural(query.rows_missed, "row")}.` : "";
  const error = [sentence(query.error), waiting, missed].filter(Boolean).join(" ");
  part("error").hidden = !error;
  say(part("error"), error);
  say(part("rate"), rate(query.rows_per_second).replace("/s", ""));
  say(part("latency"), milliseconds(query.latency_ms));
  const stages = Object.entries(query.latency ?? {}).map(([stage, ms]) => `${stage} ${milliseconds(ms)}`);
  attribute(part("latency"), "title", stages.length ? stages.join(", ") : null);
  say(part("rows"), count(query.rows));
  say(part("age"), age(Date.now() / 1000 - query.created_at));
  const paused = query.state === "paused";
  say(part("pause"), paused ? "Resume" : "Pause");
  attribute(part("pause"), "aria-label", `${paused ? "Resume" : "Pause"} ${query.name}`);
  part("pause").disabled = query.state === "pending";
  drawSparkline(row.querySelector(".spark"), series(state.samples.slice(-SPARK_SAMPLES), "rows_out", query.name));
}

function choose(name) {
  const chosen = state.chosen === name ? null : name;
  change({ chosen });
  // After the panel is there: choosing is told at once, showing comes a turn later.
  if (chosen) setTimeout(() => byId("rows").scrollIntoView({ block: "nearest" }));
}

async function pauseOrResume(name) {
  const paused = state.queries.find((query) => query.name === name)?.state === "paused";
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
  dialog.onclose = () => {
    if (opener?.isConnected) opener.focus();
    else (otherEntry(name) ?? byId("sql")).focus();
  };
  dialog.showModal();
}

function summary(queries, shown) {
  const running = queries.filter((query) => query.state === "running").length;
  if (shown < queries.length) return `${shown} of ${queries.length} found`;
  return queries.length ? `${running} of ${queries.length} running` : "";
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
  const list = table();
  body.append(skeleton());
  const find = finder(() => show(state));
  const show = ({ queries, streams }) => {
    if (queries === null) return;
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
    const sorted = found.sort((a, b) => a.created_at - b.created_at || a.name.localeCompare(b.name));
    reconcile(list.querySelector("tbody"), sorted, (query) => query.name, created, updated);
  };
  watch(["queries", "samples", "chosen", "streams"], show);
}
