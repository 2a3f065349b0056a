/* The newest rows of the chosen query, as they come. A reader that can't keep up is told how many it did not see. */

import { Problem, download, get, queryPath, subscribe } from "./api.js";
import { announce, attribute, byId, empty, h, say, skeleton } from "./dom.js";
import { count, plural } from "./format.js";
import { badge, problemOf } from "./queries.js";
import { rowsTable } from "./rows-table.js";
import { change, state, watch } from "./store.js";
import { highlighted } from "./sql-language.js";

const SHOWN = 200;
const AGAIN_AFTER = 1000;
const MOST_SAVED = 100_000;

let open = null;

/** Resolves once the page is in step with the service; rows alone would be asked for in vain. */
const connected = () =>
  new Promise((resolve) => {
    const look = () => (state.connection.state === "live" ? resolve() : setTimeout(look, AGAIN_AFTER / 4));
    look();
  });

class Tail {
  constructor(query) {
    this.query = query;
    this.skipped = 0;
    this.held = false;
    this.waiting = [];
    this.stopped = false;
    this.link = new AbortController();
    this.shown = [];
  }

  show() {
    const { table, show } = rowsTable(`Newest rows of ${this.query.name}, newest first`, this.query.columns);
    this.fill = show;
    this.note = h("p", { class: "empty" }, "Waiting for the first row …");
    this.scroll = h("div", { class: "rows-scroll live", tabindex: 0, role: "region", "aria-label": `Newest rows of ${this.query.name}`, hidden: true }, table);
    byId("rows-body").replaceChildren(sqlOf(this.query), skeleton());
    this.follow();
  }

  async follow() {
    while (!this.stopped) {
      try {
        const { signal } = (this.link = new AbortController());
        const kept = await get(queryPath(this.query.name, `/rows?limit=${SHOWN}`), { signal });
        const events = await subscribe(queryPath(this.query.name, `/events?after=${kept.total}&limit=${SHOWN}`), signal);
        byId("rows-body").replaceChildren(sqlOf(this.query), this.note, this.scroll);
        this.shown = [];
        this.add(kept.rows);
        for await (const { event, data } of events) {
          if (event === "rows") this.take(data);
          if (event === "end" && data?.reason !== "stopping") return this.end();
        }
      } catch (error) {
        if (this.stopped) return;
        if (error instanceof Problem && error.status === 404) return this.end();
      }
      await new Promise((resolve) => setTimeout(resolve, AGAIN_AFTER));
      await connected();
    }
  }

  take({ rows, skipped }) {
    this.skipped += skipped ?? 0;
    if (this.held) this.waiting.push(...rows);
    else this.add(rows);
    this.waiting = this.waiting.slice(-SHOWN);
    this.summarize();
  }

  /** Newest first: what comes last is put on top. */
  add(rows) {
    this.shown = [...rows.slice(-SHOWN).reverse(), ...this.shown].slice(0, SHOWN);
    this.fill(this.shown);
    this.note.hidden = this.shown.length > 0;
    this.scroll.hidden = !this.note.hidden;
    this.summarize();
  }

  hold(held) {
    this.held = held;
    if (!held) this.add(this.waiting.splice(0));
    this.summarize();
  }

  summarize() {
    const total = state.queries?.find((query) => query.name === this.query.name)?.rows ?? 0;
    const parts = [`${count(total)} in all`];
    if (this.held && this.waiting.length) parts.push(`${plural(this.waiting.length, "newer row")} held back`);
    if (this.skipped) parts.push(`${count(this.skipped)} too many to show`);
    say(byId("rows-summary"), parts.join(", "));
  }

  end() {
    byId("rows-body").replaceChildren(empty("This query is gone", "It was dropped, so it produces no more rows."));
    this.stop();
  }

  stop() {
    this.stopped = true;
    this.link.abort();
  }
}

function sqlOf(query) {
  return h("pre", { class: "rows-sql" }, highlighted(query.sql, state.streams ?? []));
}

function tools(tail) {
  const hold = h("button", { type: "button", class: "hold", "aria-pressed": "false" }, "Hold");
  hold.addEventListener("click", () => {
    tail.hold(!tail.held);
    attribute(hold, "aria-pressed", String(tail.held));
    say(hold, tail.held ? "Let go" : "Hold");
    announce(tail.held ? "Rows are held." : "Rows move again.");
  });
  const close = () => {
    const name = state.chosen;
    change({ chosen: null });
    document.querySelector(`#queries [data-key="${CSS.escape(name)}"] .entry`)?.focus();
  };
  const { name } = tail.query;
  const save = (format, words) =>
    h("button", { type: "button", "aria-label": `Save the newest rows of ${name} as ${words}`, onclick: () => download(queryPath(name, `/rows?limit=${MOST_SAVED}&format=${format}`), `${name}.${format}`).catch((error) => announce(`The rows could not be saved: ${error.message}`)) }, words);
  return [badge(tail.query.state), save("csv", "CSV"), save("parquet", "Parquet"), hold, h("button", { type: "button", onclick: close }, "Close")];
}

function showChosen() {
  const query = state.queries?.find((known) => known.name === state.chosen) ?? null;
  const panel = byId("rows");
  if (open && (!query || open.query.name !== query.name || open.query.created_at !== query.created_at)) {
    open.stop();
    open = null;
  }
  panel.hidden = !query;
  if (!query) return;
  if (!open) {
    open = new Tail(query);
    say(byId("rows-title"), `Rows of ${query.name}`);
    byId("rows-tools").replaceChildren(...tools(open));
    open.show();
  }
  const shown = byId("rows-tools").firstElementChild;
  if (shown.dataset.state !== query.state) shown.replaceWith(badge(query.state));
  const problem = problemOf(query);
  byId("rows-problem").hidden = !problem;
  say(byId("rows-problem"), problem);
  open.summarize();
}

export function startRows() {
  watch(["chosen", "queries"], showChosen);
  watch(["connection"], ({ connection }) => connection.state !== "live" && open?.link.abort());
}
