/* The query editor: colours, completion, the engine's verdict as one types, a preview, and create. */

import { Problem, call } from "./api.js";
import { announce, attribute, byId, h, say } from "./dom.js";
import { exampleButton } from "./examples.js";
import { concernOf, previewOf } from "./preview.js";
import { refreshSoon } from "./connection.js";
import { showRows } from "./queries.js";
import { highlighted, spans } from "./sql-language.js";
import { change, putQuery, state, watch } from "./store.js";
import { Suggestions, replaceText } from "./suggestions.js";
import { sentence } from "./format.js";

const PAUSE = 300;
const AGAIN_AFTER = 5000;
const PLACEHOLDER = "SELECT …\nFROM stream AS a\nJOIN other AS b WITHIN 5 SECONDS ON a.key = b.key\nWHERE …";

class Editor {
  constructor() {
    this.area = h("textarea", { id: "sql", name: "sql", "aria-describedby": "verdict-words editor-hint", "aria-autocomplete": "list", "aria-haspopup": "listbox", spellcheck: "false", autocomplete: "off", autocapitalize: "off", placeholder: PLACEHOLDER });
    this.copy = h("pre", { "aria-hidden": "true" });
    this.box = h("div", { class: "code" }, this.copy, this.area);
    this.sink = h("select", { id: "query-sink", name: "sink" }, h("option", { value: "" }, "memory"));
    this.sinkField = h("div", { class: "field", hidden: true }, h("label", { for: "query-sink" }, "Sink"), this.sink);
    this.verdict = h("div", { class: "verdict", tabindex: 0, role: "region", "aria-label": "What the query would give" }, h("div", { id: "verdict-words" }), h("div", { id: "preview" }));
    this.name = h("input", { id: "query-name", name: "name", autocomplete: "off", spellcheck: "false", placeholder: "chosen for you", "aria-describedby": "name-problem" });
    this.nameProblem = h("p", { class: "problem", id: "name-problem" });
    this.button = h("button", { class: "primary", id: "create", "aria-disabled": "true" }, "Create query");
    this.wrong = [];
    this.checked = null;
  }

  start() {
    const field = h("div", { class: "field" }, h("label", { for: "query-name" }, "Name (optional)"), this.name);
    this.hint = h("p", { class: "hint", id: "editor-hint" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Space"), " suggests, ", h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter"), " creates. Tab leaves the editor unless suggestions are open.");
    byId("editor-form").append(h("label", { class: "unseen", for: "sql" }, "SQL of the new query"), this.box, h("div", { class: "create" }, field, this.sinkField, this.button), this.nameProblem, this.verdict);
    this.verdict.append(this.hint);
    this.suggestions = new Suggestions(this.area, this.copy, () => this.changed(false));
    this.area.addEventListener("input", (event) => this.changed(!event.inputType?.startsWith("delete") || this.suggestions.open));
    this.area.addEventListener("keydown", (event) => this.key(event));
    this.area.addEventListener("blur", () => this.suggestions.close());
    this.area.addEventListener("click", () => this.suggestions.close());
    this.name.addEventListener("input", () => this.complain(""));
    byId("editor-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.create();
    });
    document.addEventListener("write-query", (event) => this.write(event.detail));
    watch(["streams"], ({ streams }) => this.tools(streams));
    watch(["info"], ({ info }) => this.sinks(info.sinks ?? []));
    // Costs are measured, and others come and go: a preview is of its moment.
    setInterval(() => this.checked === this.area.value && state.connection.state === "live" && !document.hidden && this.check(), AGAIN_AFTER);
    watch(["connection"], () => state.connection.state === "live" && !this.checked && this.check());
  }

  tools(streams) {
    const place = byId("editor-tools");
    if (streams?.length && !place.children.length) place.append(exampleButton("Example"));
    this.paint();
  }

  /** The sinks that the service's file names; without any, rows are kept in memory and there is nothing to choose. */
  sinks(names) {
    this.sinkField.hidden = !names.length;
    this.sink.replaceChildren(this.sink.options[0], ...names.map((name) => h("option", { value: name }, name)));
  }

  write(text) {
    replaceText(this.area, 0, this.area.value.length, text);
    this.suggestions.close();
    this.changed(false);
  }

  key(event) {
    if (this.suggestions.key(event)) event.preventDefault();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.create();
    }
  }

  paint() {
    const content = JSON.stringify([this.area.value, this.wrong, (state.streams ?? []).map(({ name }) => name)]);
    if (content === this.painted) return;
    this.painted = content;
    // The line break at the end gives the copy the line on which the caret may stand.
    this.copy.replaceChildren(...highlighted(this.area.value, state.streams ?? [], this.wrong), "\n");
    attribute(this.box, "data-wrong", this.wrong.length > 0);
  }

  changed(suggest) {
    this.wrong = [];
    this.checked = null;
    this.agreed = false;
    this.paint();
    this.allow(false);
    if (suggest) this.suggestions.update();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), PAUSE);
  }

  allow(allowed) {
    attribute(this.button, "aria-disabled", String(!allowed || Boolean(this.creating)));
  }

  async check() {
    this.running?.abort();
    const sql = this.area.value;
    if (!sql.trim()) return this.judge({});
    this.running = new AbortController();
    try {
      const preview = await call("POST", "queries?dry_run=true", { body: { sql }, signal: this.running.signal });
      this.checked = sql;
      this.judge({ preview });
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error instanceof Problem && error.status !== 503) {
        this.checked = sql;
        this.judge({ problem: error });
      } else this.judge({ away: error instanceof Problem ? sentence(error.message) : "It can't be checked while the service does not answer." });
    }
  }

  judge({ preview, problem, away }) {
    const words = byId("verdict-words");
    this.hint.hidden = Boolean(preview || problem || away);
    this.wrong = problem ? spans(this.area.value, problem.places) : [];
    attribute(this.area, "aria-invalid", problem ? "true" : null);
    this.paint();
    this.concern = preview ? concernOf(preview, state.plan) : null;
    this.allow(Boolean(preview) && (!this.concern || this.agreed));
    if (problem) this.problem(words, problem);
    else words.replaceChildren(...(away ? [h("p", { class: "quiet" }, away)] : []));
    this.preview(preview);
    const verdict = problem ? `Not valid. ${words.textContent}` : preview ? byId("preview").querySelector(".lead").textContent : "";
    if (verdict && verdict !== this.told) announce(verdict);
    this.told = verdict;
  }

  /** The same preview again leaves its elements, and what is open in it, as they are. */
  preview(preview) {
    const shown = JSON.stringify([preview ?? null, this.concern]);
    if (shown === this.shown) return;
    this.shown = shown;
    const inside = document.activeElement?.id === "agree";
    byId("preview").replaceChildren(...(preview ? [previewOf(preview, state.plan), this.question()] : []).filter(Boolean));
    if (inside) byId("agree")?.focus();
  }

  /** An expensive query is created only by someone who has read what it costs. */
  question() {
    if (!this.concern) return null;
    const box = h("input", { type: "checkbox", id: "agree", checked: this.agreed, onchange: (event) => ((this.agreed = event.target.checked), this.allow(this.agreed)) });
    return h("div", { class: "concern", role: "group", "aria-label": "Cost" }, h("p", {}, this.concern), h("label", {}, box, " Create it nevertheless"));
  }

  problem(words, problem) {
    const mistakes = this.mistakes(problem);
    // The button to the place may have the focus.
    if (words.textContent !== mistakes.map(({ textContent }) => textContent).join("")) words.replaceChildren(...mistakes);
  }

  mistakes(problem) {
    if (!this.wrong.length) return [h("p", { class: "mistake" }, h("span"), h("span", { class: "words" }, problem.message))];
    return this.wrong.map(({ start, end, line, column, message }) => {
      const go = () => {
        this.area.focus();
        this.area.setSelectionRange(start, end);
      };
      return h("p", { class: "mistake" }, h("button", { type: "button", class: "place", onclick: go, "aria-label": `Line ${line}, column ${column}: go there` }, `${line}:${column}`), h("span", { class: "words" }, message ?? problem.message));
    });
  }

  complain(text) {
    say(this.nameProblem, text);
    attribute(this.name, "aria-invalid", text ? "true" : null);
  }

  async create() {
    if (!this.area.value.trim() || this.creating) return;
    clearTimeout(this.timer);
    if (this.checked !== this.area.value) await this.check();
    if (this.button.getAttribute("aria-disabled") === "true") return this.area.focus();
    const body = { sql: this.area.value };
    if (this.name.value.trim()) body.name = this.name.value.trim();
    if (this.sink.value) body.sink = this.sink.value;
    if (this.agreed) body.allow_scan = true;
    this.creating = true;
    this.allow(false);
    say(this.button, "Creating …");
    const outcome = await call("POST", "queries", { body }).then((query) => () => this.created(query, body), (error) => () => this.refused(error));
    this.creating = false;
    say(this.button, "Create query");
    outcome();
  }

  /** It takes until the next batch. The next query may be half written by then, and the focus be elsewhere: both stay. */
  created(query, { sql, name }) {
    if (this.area.value === sql) this.area.value = "";
    if (this.name.value.trim() === (name ?? "")) this.name.value = "";
    this.complain("");
    this.changed(false);
    this.check();
    putQuery(query);
    change({ chosen: query.name });
    refreshSoon();
    const here = document.activeElement;
    if (!this.area.value && (here === document.body || byId("editor-form").contains(here))) showRows();
    if (here === document.body || (here !== this.name && byId("editor-form").contains(here))) this.area.focus();
    announce(`${query.name} created. Its rows are shown under the queries.`);
  }

  refused(error) {
    this.allow(true);
    if (error instanceof Problem && error.places.length) this.judge({ problem: error });
    else if (error instanceof Problem) {
      this.complain(error.message);
      this.name.focus();
    } else this.judge({ away: "The service does not answer; the query may have been created." });
  }
}

export function startEditor() {
  new Editor().start();
}
