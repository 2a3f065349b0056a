/* The list of completions under the caret: arrows choose, Enter or Tab takes, Escape closes. */

import { announce, attribute, h, reconcile } from "./dom.js";
import { complete, quoted } from "./sql-language.js";
import { state } from "./store.js";

/** As if it were typed, so that it can be undone. */
export function replaceText(area, start, end, text) {
  area.focus();
  area.setSelectionRange(start, end);
  if (!document.execCommand("insertText", false, text)) area.setRangeText(text, start, end, "end");
}

export class Suggestions {
  constructor(area, copy, accepted) {
    Object.assign(this, { area, copy, accepted, options: [], start: 0, index: 0 });
    this.list = h("ul", { class: "suggestions", id: "suggestions", role: "listbox", "aria-label": "Suggestions", hidden: true });
    attribute(area, "aria-controls", "suggestions");
    area.after(this.list);
  }

  get open() {
    return !this.list.hidden;
  }

  update(asked = false) {
    const { selectionStart, selectionEnd, value } = this.area;
    if (selectionStart !== selectionEnd) return this.close();
    const found = complete(value, selectionStart, state.streams ?? [], asked);
    if (!found.options.length) return this.close();
    const before = this.open ? this.options.length : 0;
    Object.assign(this, found, { index: 0 });
    this.list.hidden = false;
    this.render();
    this.place();
    if (before !== found.options.length) announce(`${found.options.length} suggestions, ${found.options[0].text}`);
  }

  render() {
    reconcile(
      this.list,
      this.options.map((option, index) => ({ ...option, index })),
      ({ text, kind }) => `${kind} ${text}`,
      ({ text, kind, note }) => h("li", { role: "option", onmousedown: (event) => event.preventDefault(), onclick: (event) => this.take([...this.list.children].indexOf(event.currentTarget)) }, text, h("span", { class: "note" }, note ?? kind)),
      (item, { index }) => {
        attribute(item, "id", `suggestion-${index}`);
        attribute(item, "aria-selected", String(index === this.index));
      },
    );
    attribute(this.area, "aria-activedescendant", this.list.children[this.index]?.id);
  }

  /** Under the first letter of the word, which the coloured copy knows the place of. */
  place() {
    const box = this.area.parentElement.getBoundingClientRect();
    const walker = document.createTreeWalker(this.copy, NodeFilter.SHOW_TEXT);
    let left = this.start;
    let node = walker.nextNode();
    while (node && left > node.length) {
      left -= node.length;
      node = walker.nextNode();
    }
    const range = document.createRange();
    if (node) range.setStart(node, Math.min(left, node.length));
    else range.setStart(this.copy, 0);
    const at = range.getClientRects()[0] ?? range.getBoundingClientRect();
    const x = at.width || at.left ? at.left - box.left : 12;
    const y = at.height ? at.bottom - box.top : 34;
    this.list.style.left = `${Math.max(0, Math.min(x - 8, box.width - this.list.offsetWidth - 4))}px`;
    this.list.style.top = `${y + 4}px`;
  }

  close() {
    this.list.hidden = true;
    attribute(this.area, "aria-activedescendant", null);
  }

  take(index = this.index) {
    const { text, kind } = this.options[index];
    const end = this.area.selectionStart;
    const tail = kind === "keyword" || kind === "unit" ? " " : kind === "function" ? "(" : "";
    const written = kind === "keyword" || kind === "unit" || kind === "function" ? text : quoted(text);
    replaceText(this.area, this.start, end, written + tail);
    this.close();
    this.accepted();
  }

  /** Whether the key was for the list. */
  key(event) {
    if (event.key === " " && event.ctrlKey) {
      this.update(true);
      return true;
    }
    if (!this.open || event.ctrlKey || event.metaKey || event.altKey) return false;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      this.index = (this.index + step + this.options.length) % this.options.length;
      this.render();
      return true;
    }
    if (event.key === "Escape") {
      this.close();
      return true;
    }
    if ((event.key === "Enter" || event.key === "Tab") && !event.shiftKey) {
      this.take();
      return true;
    }
    return false;
  }
}
