/* Throughput, latency and batch time over time, with what happened between them. Arrow keys read the chart sample by sample. */

import { KINDS, happenings } from "./activity.js";
import { attribute, byId, empty, h, reconcile, s, say, skeleton } from "./dom.js";
import { axis, clock, milliseconds, rate, whole } from "./format.js";
import { series, state, watch } from "./store.js";

const PAD = { left: 58, right: 12, top: 16 };
const LANES = { flow: { top: PAD.top, height: 104 }, marks: { top: 144, height: 22 }, delay: { top: 180, height: 46 }, time: { top: 248, height: 46 } };
const BOTTOM = LANES.time.top + LANES.time.height;
const HEIGHT = BOTTOM + 26;
const INSET = 10;
const RANGES = [["1 min", 60], ["5 min", 300], ["All", Number.POSITIVE_INFINITY]];
const LISTED = 100;

const chart = { range: 300, at: null, parts: null, points: [], events: [] };

function build() {
  const parts = { svg: s("svg", { class: "chart live", height: HEIGHT, tabindex: 0, role: "slider", "aria-label": "Throughput, latency and batch time", "aria-valuemin": 0, onkeydown: key, onpointermove: point, onpointerleave: () => read(null), onblur: () => read(null) }) };
  for (const name of ["grid", "inFill", "inLine", "outLine", "delayLine", "timeFill", "timeLine", "marks", "cursor"]) {
    parts[name] = s(name.endsWith("Fill") || name.endsWith("Line") ? "path" : "g", { class: name });
    parts.svg.append(parts[name]);
  }
  return parts;
}

function visible() {
  const { samples } = state;
  const last = samples.at(-1)?.at ?? 0;
  const first = samples.findIndex((sample) => last - sample.at <= chart.range);
  const [flowIn, flowOut] = [series(samples, "rows_in"), series(samples, "rows_out")];
  return samples.slice(first).map((sample, index) => ({ sample, rowsIn: flowIn[first + index], rowsOut: flowOut[first + index], ms: sample.seconds * 1000 }));
}

const path = (points, x, y) => (points.length ? `M${points.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}` : "");

function scaleOf(lane, most) {
  const { top, ticks } = axis(most, lane === LANES.flow ? 3 : 2);
  return { ticks, y: (value) => lane.top + lane.height - (value / top) * lane.height };
}

function draw() {
  const place = byId("chart");
  const points = visible();
  if (points.length < 2) {
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
  const [from, to] = [points[0].sample.at, points.at(-1).sample.at];
  const x = (at) => PAD.left + ((at - from) / Math.max(to - from, 1e-3)) * (width - PAD.left - PAD.right);
  const flow = scaleOf(LANES.flow, Math.max(...points.map((each) => Math.max(each.rowsIn, each.rowsOut))));
  const time = scaleOf(LANES.time, Math.max(...points.map((each) => each.ms)));
  const delays = points.filter(({ sample }) => sample.latency_ms !== null).map(({ sample }) => ({ at: sample.at, ms: sample.latency_ms }));
  const delay = scaleOf(LANES.delay, Math.max(1, ...delays.map(({ ms }) => ms)));
  Object.assign(chart, { points, delays, x, flow, delay, time, width, from, to });
  const { svg, inFill, inLine, outLine, delayLine, timeFill, timeLine } = chart.parts;
  attribute(svg, "viewBox", `0 0 ${width} ${HEIGHT}`);
  attribute(svg, "width", width);
  const close = (line, lane) => `${line}V${lane.top + lane.height}H${x(from).toFixed(1)}Z`;
  const line = (field, y) => path(points.map((each) => [each.sample.at, each[field]]), x, y);
  const lines = { in: line("rowsIn", flow.y), out: line("rowsOut", flow.y), time: line("ms", time.y) };
  attribute(delayLine, "d", path(delays.map(({ at, ms }) => [at, ms]), x, delay.y));
  attribute(inFill, "d", close(lines.in, LANES.flow));
  attribute(inLine, "d", lines.in);
  attribute(outLine, "d", lines.out);
  attribute(timeFill, "d", close(lines.time, LANES.time));
  attribute(timeLine, "d", lines.time);
  drawGrid();
  drawMarks();
  read(chart.at);
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

/** Show one sample's figures: of the pointer, of the arrow keys, or none. */
function read(index) {
  chart.at = index === null ? null : Math.min(index, chart.points.length - 1);
  if (!chart.parts) return;
  const { svg, cursor } = chart.parts;
  const here = chart.points[chart.at ?? chart.points.length - 1];
  attribute(svg, "aria-valuemax", chart.points.length - 1);
  attribute(svg, "aria-valuenow", chart.at ?? chart.points.length - 1);
  const late = here.sample.latency_ms;
  const words = `${clock(here.sample.at)}, batch ${whole(here.sample.batch)}: ${rate(here.rowsIn)} in, ${rate(here.rowsOut)} out, batch time ${milliseconds(here.ms)}${late === null ? "" : `, latency ${milliseconds(late)}`}`;
  attribute(svg, "aria-valuetext", words);
  say(byId("timeline-reading"), chart.at === null ? "" : words);
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
  return h("ul", { class: "legend" }, line("inLine", "Rows in"), line("outLine", "Rows out"), line("delayLine", "Latency, of the slowest query"), line("timeLine", "Batch time"), Object.entries(KINDS).map(mark));
}

function list() {
  const newest = chart.events.slice(-LISTED).reverse();
  const place = byId("activity");
  const shape = (kind) => s("svg", { viewBox: "-7 -7 14 14", class: `mark is-${kind}`, "aria-hidden": "true" }, s("path", { d: KINDS[kind].mark }));
  reconcile(place, newest.length ? newest : [{ key: "none" }], ({ key: name }) => name, (entry) => (entry.kind ? h("li", {}, shape(entry.kind), h("p", {}, h("span", { class: "unseen" }, `${KINDS[entry.kind].name}: `), entry.words), h("time", { datetime: new Date(entry.at * 1000).toISOString() }, clock(entry.at))) : h("li", { class: "quiet" }, "Nothing yet.")));
}

function ranges() {
  const choice = ([text, seconds]) => h("label", {}, h("input", { type: "radio", name: "range", checked: seconds === chart.range, onchange: () => ((chart.range = seconds), draw()) }), text);
  byId("timeline-tools").append(h("fieldset", { class: "choice" }, h("legend", { class: "unseen" }, "How far back"), RANGES.map(choice)));
}

export function startTimeline() {
  ranges();
  watch(["samples", "changes", "plan", "info"], (now) => {
    chart.events = happenings(now);
    list();
    draw();
  });
  new ResizeObserver(() => chart.parts && draw()).observe(byId("chart"));
  draw();
}
