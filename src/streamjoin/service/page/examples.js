/* A first query made from the streams that are there: two that have a column in common, or one joined with itself. */

import { h } from "./dom.js";
import { quoted } from "./sql-language.js";
import { state } from "./store.js";

const isTime = (type) => /timestamp|date/i.test(type);
const letter = (name) => name[0].toLowerCase().replace(/[^a-z]/, "s");

function common(first, second) {
  const types = new Map(second.columns);
  return first.columns.find(([name, type]) => name !== first.time && !/double|float/i.test(type) && types.get(name) === type)?.[0];
}

function windowOf(stream) {
  const type = new Map(stream.columns).get(stream.time) ?? "";
  return isTime(type) ? "5 SECONDS" : "100 ROWS";
}

export function example(streams) {
  for (const first of streams) {
    for (const second of streams) {
      const key = first === second ? undefined : common(first, second);
      if (key) return written(first, second, key);
    }
  }
  const [first] = streams;
  return written(first, streams[1] ?? first, null);
}

function written(first, second, key) {
  const a = letter(first.name);
  const b = letter(second.name) === a ? `${a}2` : letter(second.name);
  const column = key ?? first.columns.find(([name]) => name !== first.time)?.[0] ?? first.time;
  const other = key ?? second.columns.find(([name]) => name !== second.time)?.[0] ?? second.time;
  return `SELECT *\nFROM ${quoted(first.name)} AS ${a}\nJOIN ${quoted(second.name)} AS ${b} WITHIN ${windowOf(first)} ON ${a}.${quoted(column)} = ${b}.${quoted(other)}`;
}

export function exampleButton(text) {
  return h("button", { type: "button", onclick: () => document.dispatchEvent(new CustomEvent("write-query", { detail: example(state.streams) })) }, text);
}
