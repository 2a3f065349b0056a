/* The plan as a graph: steps in layers, edges as wide as their rate, a badge where queries share a step. Arrow keys walk it. */

import { attribute, byId, empty, h, reconcile, s, say, skeleton } from "./dom.js";
import { age, milliseconds, rate, share } from "./format.js";
import { inspect } from "./plan-inspector.js";
import { layout } from "./plan-layout.js";
import { KINDS, UNFOLDED_AT_ONCE, described, headed, model, summary } from "./plan-model.js";
import { drawScaled, forgetLook, lookAtSources, startZoom } from "./plan-zoom.js";
import { change, state, watch } from "./store.js";

const SIZE = { width: 190, height: 66 };
const WIDE = { ...SIZE, across: 18, along: 40, vertical: false };
const TALL = { ...SIZE, across: 14, along: 44, vertical: true };
const NARROW = 560;
const MARGIN = 14;
const ROOM = SIZE.width - 34;
const FONTS = { label: '550 12.5px', detail: '500 10.5px' };
const MOVE_MS = 420;
const OLD_AFTER = 10;
/** Up to this number of queries have their paths taken out of folded branches. */
const MOST_LIT = 8;
const GLYPHS = {
  source: "M0 4h5m-2-3 3 3-3 3M9 0v8",
  selection: "M0 0h9L5.5 4v4L3.5 7V4Z",
  join: "M0 0v8l9-8v8Z",
  window: "M0 0v8l9-8v8ZM4.5 0v8",
  groups: "M0 1h9M0 4h6M0 7h3",
  sink: "M0 5v3h9V5M4.5 0v5m-2.2-2 2.2 2 2.2-2",
};

const still = matchMedia("(prefers-reduced-motion: reduce)");
const view = { nodes: new Map(), places: new Map(), shown: new Map(), edges: [], focus: null, picked: null, shape: "", unfolded: new Map() };
const ease = (part) => 1 - (1 - part) ** 3;

const pen = document.createElement("canvas").getContext("2d");
const families = {};
const shortened = new Map();

/** As much of a text as fits into a box, measured in its own font. */
function short(text, part) {
  const known = `${part} ${text}`;
  if (shortened.has(known)) return shortened.get(known);
  families[part] ??= getComputedStyle(document.documentElement).getPropertyValue(part === "detail" ? "--mono" : "--sans");
  pen.font = `${FONTS[part]} ${families[part]}`;
  let letters = text.length;
  if (pen.measureText(text).width > ROOM) {
    let least = 0;
    while (least < letters) {
      const half = Math.ceil((least + letters) / 2);
      if (pen.measureText(`${text.slice(0, half)}…`).width <= ROOM) least = half;
      else letters = half - 1;
    }
  }
  if (shortened.size > 2000) shortened.clear();
  shortened.set(known, letters < text.length ? `${text.slice(0, letters)}…` : text);
  return shortened.get(known);
}

function createdNode(node) {
  const { width, height } = SIZE;
  const [x, y] = [-width / 2, -height / 2];
  return s(
    "g",
    { class: `node is-${node.kind}`, role: "button", tabindex: -1, onclick: () => pick(node.id), onfocus: () => focused(node.id) },
    s("rect", { class: "halo", x: x - 4, y: y - 4, width: width + 8, height: height + 8, rx: 12 }),
    s("rect", { class: "box", x, y, width, height, rx: node.kind === "source" || node.kind === "sink" ? 22 : 9 }),
    s("path", { class: "glyph", d: GLYPHS[node.kind] ?? GLYPHS.join, transform: `translate(${x + 17} ${y + 12.5})` }),
    s("text", { class: "kind", x: x + 33, y: y + 21 }, (KINDS[node.kind] ?? node.kind).toUpperCase()),
    s("text", { class: "rate", x: x + width - 15, y: y + 21 }),
    s("text", { class: "label", x: x + 17, y: y + 38 }),
    s("text", { class: "detail", x: x + 17, y: y + 54 }),
    s("rect", { class: "heat", x: x + 17, y: y + height - 7, height: 4, rx: 2 }),
    s("g", { class: "sharing", transform: `translate(${x + width - 8} ${y})` }, s("rect", { x: -28, y: -10, width: 40, height: 20, rx: 10 }), s("text", { x: -8, y: 4.5 })),
    s("title"),
  );
}

function updatedNode(element, node) {
  attribute(element, "data-shared", node.shared);
  attribute(element, "aria-label", described(node));
  attribute(element, "aria-pressed", node.folded ? null : String(view.picked === node.id));
  attribute(element, "aria-expanded", node.folded ? "false" : null);
  attribute(element, "data-folded", node.folded);
  const heat = element.querySelector(".heat");
  attribute(heat, "width", node.part > 0 ? Math.max(2, node.part * (SIZE.width - 34)).toFixed(1) : 0);
  attribute(heat, "data-level", node.part >= 0.5 ? "high" : node.part >= 0.2 ? "middle" : "low");
  attribute(element, "tabindex", view.focus === node.id ? 0 : -1);
  attribute(element, "data-away", away(node.queries));
  const [title, rest] = headed(node);
  say(element.querySelector(".label"), short(title, "label"));
  say(element.querySelector(".detail"), short(rest, "detail"));
  say(element.querySelector(".rate"), node.rows_per_second === undefined ? "" : rate(node.rows_per_second));
  say(element.querySelector(".sharing text"), `×${node.queries.length}`);
  const time = node.load ? `\n${milliseconds(node.load * 1000)} per second, ${share(node.part)} of all joins` : "";
  say(element.querySelector("title"), `${node.label}${time}`);
}

/** The query of the name that is looked for; without one, those whose names have it in them. */
function traces(name) {
  const wanted = state.traced.toLowerCase();
  const known = (state.queries ?? []).some((query) => query.name.toLowerCase() === wanted);
  return known ? name.toLowerCase() === wanted : name.toLowerCase().includes(wanted);
}

/** Whether a step has no part in the queries that are looked for, or in the one that is pointed at or chosen. */
function away(queries) {
  const wanted = state.hovered ?? (state.traced ? null : state.chosen);
  if (wanted !== null) return !queries.includes(wanted);
  return state.traced !== "" && !queries.some(traces);
}

/** The queries whose paths are shown step by step. */
function lit() {
  if (!state.traced) return new Set(state.chosen === null ? [] : [state.chosen]);
  const names = (state.queries ?? []).map(({ name }) => name).filter(traces);
  return new Set(names.length <= MOST_LIT ? names : []);
}

function curve(from, to, bends) {
  const vertical = view.vertical;
  const reach = vertical ? SIZE.height / 2 : SIZE.width / 2;
  const points = [from, ...bends, to].map((point) => ({ ...point }));
  points[0][vertical ? "y" : "x"] += reach;
  points.at(-1)[vertical ? "y" : "x"] -= reach;
  const parts = points.slice(1).map((end, index) => {
    const start = points[index];
    const half = vertical ? (start.y + end.y) / 2 : (start.x + end.x) / 2;
    return vertical ? `C${start.x} ${half} ${end.x} ${half} ${end.x} ${end.y}` : `C${half} ${start.y} ${half} ${end.y} ${end.x} ${end.y}`;
  });
  return `M${points[0].x} ${points[0].y}${parts.join("")}`;
}

function drawEdges() {
  const most = Math.max(1e-9, ...view.edges.map((edge) => edge.flow ?? 0));
  for (const edge of view.edges) {
    const [from, to] = [view.shown.get(edge.from), view.shown.get(edge.to)];
    if (!from || !to) continue;
    edge.element.setAttribute("d", curve(from, to, view.moving ? [] : edge.bends));
    edge.element.setAttribute("stroke-width", (1.5 + 6.5 * Math.sqrt((edge.flow ?? 0) / most)).toFixed(2));
    const both = [view.nodes.get(edge.from), view.nodes.get(edge.to)];
    attribute(edge.element, "data-away", both.some((node) => away(node.queries)));
  }
}

function putNodes() {
  for (const [id, element] of view.elements) {
    const { x, y } = view.shown.get(id);
    element.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
  }
  drawEdges();
}

/** From where the nodes are to where they should be. New ones come in at their place; a new size of the window is no news. */
function move(animated) {
  const from = new Map(view.shown);
  const goal = view.places;
  view.shown = new Map([...goal].map(([id, to]) => [id, { ...(from.get(id) ?? to) }]));
  cancelAnimationFrame(view.frame);
  const moved = [...goal].some(([id, to]) => Math.hypot(view.shown.get(id).x - to.x, view.shown.get(id).y - to.y) > 0.5);
  view.moving = animated && moved && !still.matches;
  if (!view.moving) {
    view.shown = new Map([...goal].map(([id, to]) => [id, { ...to }]));
    return putNodes();
  }
  const began = performance.now();
  const step = (now) => {
    const part = Math.min(1, (now - began) / MOVE_MS);
    for (const [id, to] of goal) {
      const start = from.get(id) ?? to;
      view.shown.set(id, { x: start.x + (to.x - start.x) * ease(part), y: start.y + (to.y - start.y) * ease(part) });
    }
    view.moving = part < 1;
    putNodes();
    if (part < 1) view.frame = requestAnimationFrame(step);
  };
  step(began);
}

function show(animated = true) {
  if (!state.plan) return;
  view.held ||= view.svg?.contains(document.activeElement) ?? false;
  const { nodes, edges } = model(state.plan, { unfolded: view.unfolded, lit: lit() });
  const scroll = byId("plan-scroll");
  say(byId("plan-summary"), summary(nodes));
  showAge();
  // It keeps its place, so that the buttons beside it keep theirs.
  attribute(view.fold, "data-unused", view.unfolded.size === 0);
  view.fold.disabled = view.unfolded.size === 0;
  if (!nodes.some(({ kind }) => kind !== "source")) return showNothing(scroll, nodes);
  if (!view.svg?.isConnected) start(scroll);
  const [before, pickedBefore] = [view.nodes.get(view.focus), view.nodes.get(view.picked)];
  view.nodes = new Map(nodes.map((node) => [node.id, node]));
  arrange(nodes, edges, scroll);
  if (!view.nodes.has(view.focus)) view.focus = (successor(before, nodes) ?? nodes[0]).id;
  if (!view.nodes.has(view.picked)) view.picked = successor(pickedBefore, nodes)?.id ?? null;
  ghosts(nodes);
  reconcile(view.edgeLayer, view.edges, (edge) => `${edge.from} ${edge.to}`, () => s("path", { class: "edge" }), (element, edge) => (edge.element = element));
  reconcile(view.nodeLayer, nodes, (node) => node.id, createdNode, updatedNode);
  view.elements = new Map([...view.nodeLayer.children].map((element) => [element.dataset.key, element]));
  keepFocus();
  move(animated);
  inspect(view.nodes.get(view.picked) ?? null, () => pick(view.picked));
}

/** The step that is now what `node` was: a new plan may number its groups anew. */
function successor(node, nodes) {
  const same = nodes.filter(({ kind }) => kind === node?.kind);
  return same.find(({ label }) => label === node.label) ?? same.find(({ queries }) => queries.some((name) => node.queries.includes(name)));
}

/** A step that had the focus when the plan was drawn anew still has it, or its successor, unless it has gone elsewhere. */
function keepFocus() {
  if (view.held && document.activeElement === document.body) view.elements.get(view.focus).focus({ preventScroll: true });
  view.held = false;
}

/** What goes fades: a copy of it stays for a moment, out of reach. */
function ghosts(nodes) {
  if (still.matches) return;
  const staying = new Set(nodes.map(({ id }) => id));
  for (const element of view.nodeLayer.children) {
    if (staying.has(element.dataset.key)) continue;
    const ghost = element.cloneNode(true);
    for (const name of ["role", "tabindex", "aria-label", "data-key"]) ghost.removeAttribute(name);
    ghost.classList.add("ghost");
    ghost.addEventListener("animationend", () => ghost.remove());
    view.ghostLayer.append(ghost);
  }
}

/** A layout anew only where the graph or the room changed: figures alone leave the places. */
function arrange(nodes, edges, scroll) {
  view.vertical = scroll.clientWidth < NARROW;
  const shape = JSON.stringify([view.vertical, nodes.map(({ id }) => id), edges.map(({ from, to }) => [from, to])]);
  if (shape !== view.shape) {
    view.shape = shape;
    view.layout = layout(nodes, edges, view.vertical ? TALL : WIDE);
    view.places = new Map([...view.layout.places].map(([id, place]) => [id, { ...place }]));
  }
  const flows = new Map(edges.map(({ from, to, rows_per_second: flow }) => [`${from} ${to}`, flow]));
  view.edges = view.layout.edges.map((edge) => ({ ...edge, flow: flows.get(`${edge.from} ${edge.to}`) }));
  const { width, height } = { width: view.layout.width + 2 * MARGIN, height: view.layout.height + 2 * MARGIN };
  attribute(view.svg, "viewBox", `${-MARGIN} ${-MARGIN} ${width} ${height}`);
  const corner = ({ x, y }) => ({ x: x + MARGIN - SIZE.width / 2, y: y + MARGIN - SIZE.height / 2 });
  drawScaled(view.svg, { width, height }, [...view.places].map(([id, place]) => ({ id, ...SIZE, ...corner(place) })));
  const sources = nodes.filter(({ kind }) => kind === "source").map(({ id }) => view.places.get(id));
  lookAtSources(sources.map(({ x, y }) => ({ x: x + MARGIN, y: y + MARGIN })));
}

function start(scroll) {
  view.edgeLayer = s("g", { "aria-hidden": "true" });
  view.ghostLayer = s("g", { "aria-hidden": "true" });
  view.nodeLayer = s("g");
  view.svg = s("svg", { class: "plan-graph live", role: "group", "aria-label": "The plan: sources, selections, joins, groups and sinks. Arrow keys go from step to step, Enter tells about one.", onkeydown: key }, view.edgeLayer, view.ghostLayer, view.nodeLayer);
  scroll.replaceChildren(view.svg);
  byId("plan-foot").replaceChildren(legend());
}

function showNothing(scroll, nodes) {
  view.svg = null;
  forgetLook();
  view.shape = "";
  view.shown = new Map();
  // The step may be back with the next plan, and is still the chosen one then.
  inspect(null);
  byId("plan-foot").replaceChildren();
  if (scroll.firstChild?.className !== "empty") scroll.replaceChildren(empty("Nothing to join yet", nodes.length ? "The streams are running. The steps of the first query will appear here." : "There are no streams and no queries."));
}

function legend() {
  const part = (kind) => h("li", {}, s("svg", { viewBox: "-1 -1 11 10", "aria-hidden": "true", class: `is-${kind}` }, s("path", { class: "glyph", d: GLYPHS[kind] })), KINDS[kind]);
  return h("ul", { class: "legend" }, Object.keys(KINDS).map(part), h("li", {}, h("span", { class: "badge", "data-state": "shared" }, "×2"), "queries that share a step"), h("li", {}, s("svg", { viewBox: "0 0 22 8", "aria-hidden": "true", class: "wide" }, s("rect", { class: "heat", "data-level": "high", y: 2, width: 22, height: 4, rx: 2 })), "share of the time of all joins"), h("li", { class: "quiet" }, "Wider edges carry more rows per second."));
}

/** A folded branch shows more of its steps, a sink its rows, and every step its figures. */
function pick(id) {
  const node = view.nodes.get(id);
  if (node?.folded) {
    view.unfolded.set(node.branch, (view.unfolded.get(node.branch) ?? 0) + UNFOLDED_AT_ONCE);
    view.focus = id;
    return show();
  }
  if (node?.kind === "sink" && view.picked !== id) change({ chosen: node.queries[0] });
  view.picked = view.picked === id ? null : id;
  view.focus = id;
  show();
}

function focused(id) {
  view.focus = id;
  for (const [name, element] of view.elements) attribute(element, "tabindex", name === id ? 0 : -1);
}

/** Along the flow to the nearest step, across it to the next of the layer. */
function key(event) {
  const forward = view.vertical ? ["ArrowUp", "ArrowDown"] : ["ArrowLeft", "ArrowRight"];
  const sideways = view.vertical ? ["ArrowLeft", "ArrowRight"] : ["ArrowUp", "ArrowDown"];
  const here = view.places.get(view.focus);
  if (!here) return;
  const cross = view.vertical ? "x" : "y";
  let goal;
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    return pick(view.focus);
  }
  if (event.key === "Escape" && view.picked) {
    pick(view.picked);
    return view.elements.get(view.focus)?.focus({ preventScroll: true });
  }
  const along = forward.indexOf(event.key) * 2 - 1;
  const step = sideways.indexOf(event.key) * 2 - 1;
  if (forward.includes(event.key)) {
    const layer = [...view.places].filter(([, place]) => (place.rank - here.rank) * along > 0);
    goal = layer.sort(([, a], [, b]) => Math.abs(a.rank - here.rank) - Math.abs(b.rank - here.rank) || Math.abs(a[cross] - here[cross]) - Math.abs(b[cross] - here[cross]))[0];
  } else if (sideways.includes(event.key)) {
    const layer = [...view.places].filter(([, place]) => place.rank === here.rank && (place[cross] - here[cross]) * step > 0);
    goal = layer.sort(([, a], [, b]) => Math.abs(a[cross] - here[cross]) - Math.abs(b[cross] - here[cross]))[0];
  } else return;
  event.preventDefault();
  if (goal) view.elements.get(goal[0]).focus();
}

/** While a long batch runs, the plan is the last known one. */
function showAge() {
  const old = Date.now() / 1000 - (state.plan?.at ?? Number.POSITIVE_INFINITY);
  say(byId("plan-age"), old > OLD_AFTER ? `as it was ${age(old)} ago` : "");
}

function tools() {
  view.fold = h("button", { type: "button", class: "plain", disabled: true, "data-unused": true, onclick: () => (view.unfolded.clear(), show()) }, "Fold");
  const find = h("input", { type: "search", class: "find", placeholder: "Light a query's path", "aria-label": "Light the path of a query", oninput: (event) => change({ traced: event.target.value.trim() }) });
  byId("plan-tools").append(find, view.fold);
}

export function startPlan() {
  byId("plan-scroll").append(skeleton());
  tools();
  setInterval(showAge, 1000);
  startZoom(() => show(false));
  watch(["plan", "chosen", "hovered", "traced"], () => show());
  new ResizeObserver(() => show(false)).observe(byId("plan-scroll"));
}
