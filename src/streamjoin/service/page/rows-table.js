/* A table of rows in which nothing moves: columns keep their width, rows their place, and only texts change. */

import { attribute, h, say } from "./dom.js";

const WIDER = 1.7;

const numeric = (type) => /int|float|double|decimal|bigint|long|short|byte/i.test(type) && !/interval/i.test(type);

/** How much room a column has at least, in rem. */
const room = (type) => (/timestamp/i.test(type) ? 15.5 : /float|double|decimal/i.test(type) ? 8.5 : 7);

/** Sums of floats end in noise: what is shown has twelve digits, the title all. */
function fill(cell, value) {
  const none = value === null || value === undefined;
  const text = none ? "null" : typeof value === "object" ? JSON.stringify(value) : String(value);
  const shown = typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(12))) : text;
  cell.classList.toggle("null", none);
  attribute(cell, "title", shown !== text || text.length > 12 ? text : null);
  say(cell, shown);
}

/** The rows of a table in `columns`, newest first. Rows stay where they are and only their text changes, so that nothing moves. */
function fillRows(tbody, rows, numbers) {
  while (tbody.children.length > rows.length) tbody.lastElementChild.remove();
  while (tbody.children.length < rows.length) tbody.append(h("tr", {}, numbers.map((number) => h("td", { class: number ? "number" : null }))));
  rows.forEach((row, index) => row.forEach((value, column) => fill(tbody.children[index].children[column], value)));
}

/** A table for rows; columns are as wide as they will ever be. */
export function rowsTable(caption, columns) {
  const numbers = columns.map(([, type]) => numeric(type));
  const headings = columns.map(([name, type], index) => h("th", { scope: "col", title: name, class: numbers[index] ? "number" : null }, name, h("span", { class: "type quiet" }, type)));
  const tbody = h("tbody");
  const table = h("table", { class: "rows-table" }, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, headings)), tbody);
  columns.forEach(([, type], index) => (headings[index].style.width = `${room(type)}rem`));
  const least = columns.reduce((sum, [, type]) => sum + room(type), 0);
  table.style.width = `min(100%, ${least * WIDER}rem)`;
  table.style.minWidth = `${least}rem`;
  return { table, show: (rows) => fillRows(tbody, rows, numbers) };
}
