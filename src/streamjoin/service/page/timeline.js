/* Throughput, latency and batch time over time up to now, with what happened between them. Arrow keys read it batch by batch. */

import { KINDS, happenings } from "./activity.js";
import { attribute, byId, empty, h, reconcile, s, say, skeleton } from "./dom.js";
import { axis, clock, milliseconds, rate, usual, whole } from "./format.js";
import { DRAWN_SECONDS, series, state, watch } from "./store.js";

const PAD = { left: 58, right: 12, top: 16 };
const LANES = { flow: { top: PAD.top, height: 104 }, marks: { top: 144, height: 22 }, delay: { top: 180, height: 46 }, time: { top: 248, height: 46 } };
const BOTTOM = LANES.time.top + LANES.time.height;
const HEIGHT = BOTTOM + 26;
const INSET = 10;
const RANGES = [["1 min", 60], ["5 min", 300], ["All", Number.POSITIVE_INFINITY]];
const LISTED = 100;
/* What a batch does, from the bottom of its column up. */
const STAGES = { arrivals: "Taking in", joining: "Joining", storing: "Journal", sinks: "Sinks", other: "Other" };
/** Nothing ran where two batches are further apart than this: the seconds at least, and times the usual distance. */
const [GAP_SECONDS, GAP_TIMES] = [3, 4];

const chart = { range: 300, at: null, parts: null, points: [], events: [] };

function build() {
  const parts = { svg: s("svg", { class: "chart live", height: HEIGHT, tabindex: 0, role: "slider", "aria-label": "Throughput, latency and batch time", "aria-valuemin": 0, onkeydown: key, onpointermove: point, onpointerleave: () => read(null), onblur: () => read(null) }) };
  for (const name of ["grid", "inFill", "inLine", "outLine", "delayLine", "stacks", "clipped", "marks", "cursor"]) {
    parts[name] = s(name.endsWith("Fill") || name.endsWith("Line") ? "path" : "g", { class: name });
    parts.svg.append(parts[name]);
  }
  parts.stacks.append(...Object.keys(STAGES).map((stage) => s("path", { class: `stage is-${stage}` })));
  return parts;
}

/** Seconds up to now: the page's clock, or the service's where that is ahead. */
const present = () => Math.max(Date.now() / 1000, state.samples.at(-1)?.at ?? 0);

function visible() {
  const { samples } = state;
  const begin = present() - chart.range;
  const first = Math.max(0, samples.findIndex((sample) => sample.at >= begin));
  const [flowIn, flowOut] = ["rows_in", "rows_out"].map((field) => series(samples, field, undefined, DRAWN_SECONDS));
  const inside = samples.at(-1)?.at >= begin ? samples.slice(first) : [];
  return inside.map((sample, index) => ({ sample, rowsIn: flowIn[first + index], rowsOut: flowOut[first + index], ms: sample.seconds * 1000, stages: stagesOf(sample) }));
}

/** Milliseconds by stage; together they are the time of the batch. */
function stagesOf({ seconds, stages = {} }) {
  const named = Object.keys(STAGES).slice(0, -1).map((stage) => (stages[stage] ?? 0) * 1000);
  return [...named, Math.max(0, seconds * 1000 - named.reduce((sum, ms) => sum + ms, 0))];
}

/** The times in which batches followed each other. */
export function unbroken(times) {
  const distances = times.slice(1).map((at, index) => at - times[index]).sort((a, b) => a - b);
  const longest = Math.max(GAP_SECONDS, GAP_TIMES * (distances[Math.floor(distances.length / 2)] ?? 0));
  const parts = [];
  times.forEach((at, index) => {
    if (index && at - times[index - 1] <= longest) parts.at(-1).push(index);
    else parts.push([index]);
  });
  return parts;
}

const path = (points, x, y) => (points.length ? `M${points.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}` : "");

/** Values above the scale are drawn at its top. */
function scaleOf(lane, values) {
  const { top, ticks } = axis(Math.max(usual(values), 1e-9), lane === LANES.flow ? 3 : 2);
  return { ticks, top, y: (value) => lane.top + lane.height - (Math.min(value, top) / top) * lane.height };
}

function draw() {
  const place = byId("chart");
  const points = visible();
  if (state.samples.length < 2) {
    chart.parts = null;
    if (state.info === null) place.replaceChildren(skeleton());
    else if (place.firstChild?.className !== "empty") place.replaceChildren(empty("No batches yet", "Rates and batch times are drawn here from the second batch on."));
    return;
  }
  if (!chart.parts) {
    chart.parts = build();
    place.replaceChildren(keyOf(), chart.parts.svg);
  }
  const width = Math.max(280, place.clientWidth - 2 * INSET);
  const to = present();
  const from = Math.min(to - 1, Number.isFinite(chart.range) ? Math.max(to - chart.range, state.samples[0].at) : state.samples[0].at);
  const x = (at) => PAD.left + ((at - from) / (to - from)) * (width - PAD.left - PAD.right);
  const delays = points.filter(({ sample }) => sample.latency_ms !== null).map(({ sample }) => ({ at: sample.at, ms: sample.latency_ms }));
  const flow = scaleOf(LANES.flow, points.flatMap((each) => [each.rowsIn, each.rowsOut]));
  const time = scaleOf(LANES.time, points.map((each) => each.ms));
  const delay = scaleOf(LANES.delay, delays.map(({ ms }) => ms));
  Object.assign(chart, { points, delays, x, flow, delay, time, width, from, to });
  const { svg, inFill, inLine, outLine, delayLine } = chart.parts;
  attribute(svg, "viewBox", `0 0 ${width} ${HEIGHT}`);
  attribute(svg, "width", width);
  const parts = unbroken(points.map(({ sample }) => sample.at));
  const line = (of, y) => parts.map((part) => path(part.map((index) => [points[index].sample.at, of(points[index])]), x, y)).join("");
  const filled = (of, base, y) => parts.map((part) => area(part.map((index) => points[index]), of, base, x, y)).join("");
  attribute(inFill, "d", filled((each) => each.rowsIn, () => 0, flow.y));
  attribute(inLine, "d", line((each) => each.rowsIn, flow.y));
  attribute(outLine, "d", line((each) => each.rowsOut, flow.y));
  const delayed = unbroken(delays.map(({ at }) => at));
  attribute(delayLine, "d", delayed.map((part) => path(part.map((index) => [delays[index].at, delays[index].ms]), x, delay.y)).join(""));
  const below = (each, stage) => each.stages.slice(0, stage).reduce((sum, ms) => sum + ms, 0);
  [...chart.parts.stacks.children].forEach((element, stage) => attribute(element, "d", filled((each) => below(each, stage + 1), (each) => below(each, stage), time.y)));
  drawGrid();
  drawClipped();
  drawMarks();
  read(chart.at);
}

/** Between two curves; a batch by itself is as wide as can be seen. */
function area(points, of, base, x, y) {
  const [first, last] = [points[0], points.at(-1)];
  const ends = points.length > 1 ? points.map((each) => [x(each.sample.at), each]) : [[x(first.sample.at) - 1, first], [x(last.sample.at) + 1, last]];
  const upper = ends.map(([at, each]) => `${at.toFixed(1)} ${y(of(each)).toFixed(1)}`);
  const lower = ends.reverse().map(([at, each]) => `${at.toFixed(1)} ${y(base(each)).toFixed(1)}`);
  return `M${[...upper, ...lower].join("L")}Z`;
}

/** Where a value is above its scale: an arrow, and the value for who points at it. */
function drawClipped() {
  const { points, delays, flow, delay, time, x } = chart;
  const over = [
    ...points.filter((each) => Math.max(each.rowsIn, each.rowsOut) > flow.top).map((each) => [each.sample.at, LANES.flow, rate(Math.max(each.rowsIn, each.rowsOut))]),
    ...delays.filter(({ ms }) => ms > delay.top).map(({ at, ms }) => [at, LANES.delay, milliseconds(ms)]),
    ...points.filter((each) => each.ms > time.top).map((each) => [each.sample.at, LANES.time, milliseconds(each.ms)]),
  ];
  reconcile(
    chart.parts.clipped,
    over,
    ([at, lane]) => `${at} ${lane.top}`,
    ([, , words]) => s("path", { d: "M-4 2 0-4 4 2Z" }, s("title", {}, words)),
    (mark, [at, lane]) => mark.setAttribute("transform", `translate(${x(at).toFixed(1)} ${lane.top - 2})`),
  );
}

function drawGrid() {
  const { width, flow, delay, delays, time, from, to, x } = chart;
  const row = (y, text) => [s("line", { x1: PAD.left, x2: width - PAD.right, y1: y, y2: y }), s("text", { x: PAD.left - 8, y: y + 4, class: "tick" }, text)];
  const seconds = to - from;
  const steps = width < 520 ? 2 : 5;
  const columns = Array.from({ length: steps + 1 }, (_, index) => {
    const at = from + (seconds * index) / steps;
    return s("text", { x: x(at), y: HEIGHT - 8, class: `when ${index === 0 ? "first" : index === steps ? "last" : ""}` }, clock(at));
  });
  const none = delays.length ? "" : s("text", { class: "none", x: PAD.left, y: LANES.delay.top + LANES.delay.height / 2 }, "No latency yet: it is measured as rows come.");
  const lane = s("rect", { class: "lane", x: PAD.left, y: LANES.marks.top - LANES.marks.height / 2, width: width - PAD.left - PAD.right, height: LANES.marks.height, rx: 4 });
  chart.parts.grid.replaceChildren(lane, none, ...flow.ticks.flatMap((tick) => row(flow.y(tick), rate(tick))), ...[delays.length ? delay : { ticks: [] }, time].flatMap(({ ticks, y }) => ticks.flatMap((tick) => row(y(tick), milliseconds(tick)))), ...columns);
}

function drawMarks() {
  const { from, to, x } = chart;
  const shown = chart.events.filter(({ at }) => at >= from && at <= to + 2);
  reconcile(
    chart.parts.marks,
    shown,
    ({ key: name }) => name,
    ({ kind, words, at }) => s("g", { class: `mark is-${kind}` }, s("line", { y1: PAD.top, y2: BOTTOM }), s("path", { d: KINDS[kind].mark, transform: `translate(0 ${LANES.marks.top})` }), s("title", {}, `${clock(at)} ${words}`)),
    (mark, { at }) => mark.setAttribute("transform", `translate(${x(Math.min(at, to)).toFixed(1)} 0)`),
  );
}

/** The stage that took most of a batch. */
function mostly({ stages, ms }) {
  const most = Math.max(...stages);
  return most > ms / 2 ? ` (mostly ${Object.values(STAGES)[stages.indexOf(most)].toLowerCase()})` : "";
}

/** Show one sample's figures: of the pointer, of the arrow keys, or none. */
function read(index) {
  chart.at = index === null || !chart.points.length ? null : Math.min(index, chart.points.length - 1);
  if (!chart.parts) return;
  if (!chart.points.length) {
    say(byId("timeline-reading"), "No batch in this time.");
    return chart.parts.cursor.replaceChildren();
  }
  const { svg, cursor } = chart.parts;
  const here = chart.points[chart.at ?? chart.points.length - 1];
  attribute(svg, "aria-valuemax", chart.points.length - 1);
  attribute(svg, "aria-valuenow", chart.at ?? chart.points.length - 1);
  const late = here.sample.latency_ms;
  const words = `${clock(here.sample.at)}, batch ${whole(here.sample.batch)}: ${rate(here.rowsIn)} in, ${rate(here.rowsOut)} out, batch time ${milliseconds(here.ms)}${mostly(here)}${late === null ? "" : `, latency ${milliseconds(late)}`}`;
  attribute(svg, "aria-valuetext", words);
  say(byId("timeline-reading"), words);
  if (chart.at === null) return cursor.replaceChildren();
  const x = chart.x(here.sample.at);
  cursor.replaceChildren(s("line", { x1: x, x2: x, y1: PAD.top, y2: BOTTOM }), ...[chart.flow.y(here.rowsIn), chart.flow.y(here.rowsOut), chart.time.y(here.ms)].map((y) => s("circle", { cx: x, cy: y, r: 3.5 })));
}

function point(event) {
  const box = chart.parts.svg.getBoundingClientRect();
  const wanted = event.clientX - box.left;
  let best = 0;
  chart.points.forEach((each, index) => {
    if (Math.abs(chart.x(each.sample.at) - wanted) < Math.abs(chart.x(chart.points[best].sample.at) - wanted)) best = index;
  });
  read(best);
}

function key(event) {
  const last = chart.points.length - 1;
  const now = chart.at ?? last;
  const goal = { ArrowLeft: now - 1, ArrowDown: now - 1, ArrowRight: now + 1, ArrowUp: now + 1, PageDown: now - 10, PageUp: now + 10, Home: 0, End: last }[event.key];
  if (goal === undefined) return;
  event.preventDefault();
  read(Math.min(last, Math.max(0, goal)));
}

function keyOf() {
  const line = (kind, text) => h("li", {}, s("svg", { viewBox: "0 0 22 8", "aria-hidden": "true" }, s("path", { class: kind, d: "M1 4H21" })), text);
  const mark = ([kind, { name, mark: shape }]) => h("li", {}, s("svg", { viewBox: "-7 -7 14 14", "aria-hidden": "true", class: `mark is-${kind}` }, s("path", { d: shape })), name);
  return h("ul", { class: "legend" }, line("inLine", "Rows in"), line("outLine", "Rows out"), line("delayLine", "Latency, of the slowest query"), h("li", {}, "Batch time:"), Object.entries(STAGES).map(([stage, text]) => h("li", {}, s("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, s("rect", { class: `stage is-${stage}`, width: 10, height: 10, rx: 2 })), text)), Object.entries(KINDS).map(mark));
}

function list() {
  const wanted = byId("activity-find").value.trim().toLowerCase();
  const newest = chart.events.filter(({ queries }) => !wanted || queries.some((name) => name.toLowerCase().includes(wanted))).slice(-LISTED).reverse();
  const place = byId("activity");
  const shape = (kind) => s("svg", { viewBox: "-7 -7 14 14", class: `mark is-${kind}`, "aria-hidden": "true" }, s("path", { d: KINDS[kind].mark }));
  reconcile(place, newest.length ? newest : [{ key: `none ${wanted}` }], ({ key: name }) => name, (entry) => (entry.kind ? h("li", {}, shape(entry.kind), h("p", {}, h("span", { class: "unseen" }, `${KINDS[entry.kind].name}: `), entry.words), h("time", { datetime: new Date(entry.at * 1000).toISOString() }, clock(entry.at))) : h("li", { class: "quiet" }, byId("activity-find").value.trim() ? "Nothing happened to such a query." : "Nothing yet.")));
}

function ranges() {
  const choice = ([text, seconds]) => h("label", {}, h("input", { type: "radio", name: "range", checked: seconds === chart.range, onchange: () => ((chart.range = seconds), draw()) }), text);
  byId("timeline-tools").append(h("fieldset", { class: "choice" }, h("legend", { class: "unseen" }, "How far back"), RANGES.map(choice)));
}

export function startTimeline() {
  ranges();
  byId("activity-find").addEventListener("input", list);
  // Time passes also where nothing happens.
  setInterval(() => chart.parts && !document.hidden && draw(), 1000);
  watch(["samples", "changes", "info"], (now) => {
    chart.events = happenings(now);
    list();
    draw();
  });
  new ResizeObserver(() => chart.parts && draw()).observe(byId("chart"));
  draw();
}
