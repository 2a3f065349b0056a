/* How large the plan is drawn and which part of it is seen: buttons, Ctrl and the wheel, dragging, an overview in the corner. */

import { attribute, byId, h, reconcile, s } from "./dom.js";

const [LEAST, READABLE, MOST, STEP] = [0.1, 0.68, 2, 1.25];
const MAP = { width: 168, height: 112 };
const DRAG_FROM = 4;
/** `scale` is null while the plan follows the width of its panel. */
const view = { scale: null, shown: 1, size: { width: 1, height: 1 }, scroll: null, map: null, began: false };

const between = (value, least, most) => Math.min(most, Math.max(least, value));
const fitting = () => Math.min(1, (view.scroll.clientWidth - 24) / view.size.width, (view.scroll.clientHeight - 24) / view.size.height);
const following = () => between((view.scroll.clientWidth - 8) / view.size.width, READABLE, 1);

/** Draw `svg`, `size` large, at the chosen scale, and keep in the middle what is there. */
export function drawScaled(svg, size, nodes) {
  view.size = size;
  const scale = view.scale ?? following();
  const { scroll } = view;
  const middle = { x: (scroll.scrollLeft + scroll.clientWidth / 2) / view.shown, y: (scroll.scrollTop + scroll.clientHeight / 2) / view.shown };
  attribute(svg, "width", Math.round(size.width * scale));
  attribute(svg, "height", Math.round(size.height * scale));
  if (scale !== view.shown && view.began) scroll.scrollTo(middle.x * scale - scroll.clientWidth / 2, middle.y * scale - scroll.clientHeight / 2);
  view.shown = scale;
  drawMap(nodes);
}

/** The first look: where the plan begins, at the source nearest to the middle. */
export function lookAtSources(places) {
  if (view.began || !places.length) return;
  view.began = true;
  const away = ({ x, y }) => Math.hypot(x - view.size.width / 2, y - view.size.height / 2);
  const { x, y } = places.reduce((best, place) => (away(place) < away(best) ? place : best));
  view.scroll.scrollTo(x * view.shown - view.scroll.clientWidth / 2, y * view.shown - view.scroll.clientHeight / 2);
  frame();
}

export function forgetLook() {
  view.began = false;
  attribute(view.map, "hidden", true);
}

/** Draw at another scale; what is at a point, or in the middle, stays there. */
function zoom(scale, at) {
  const { scroll } = view;
  const box = scroll.getBoundingClientRect();
  const point = at ?? { x: box.left + box.width / 2, y: box.top + box.height / 2 };
  const inside = { x: (scroll.scrollLeft + point.x - box.left) / view.shown, y: (scroll.scrollTop + point.y - box.top) / view.shown };
  view.scale = between(scale, Math.min(LEAST, fitting()), MOST);
  view.redraw();
  scroll.scrollTo(inside.x * view.shown - (point.x - box.left), inside.y * view.shown - (point.y - box.top));
}

function drawMap(nodes) {
  const { scroll, size, shown, map } = view;
  const larger = size.width * shown > scroll.clientWidth * 1.3 || size.height * shown > scroll.clientHeight * 1.3;
  attribute(map, "hidden", !larger);
  if (!larger) return;
  attribute(map, "viewBox", `0 0 ${size.width} ${size.height}`);
  reconcile(map.firstChild, nodes, ({ id }) => id, () => s("rect", { class: "spot" }), (spot, { x, y, width, height }) => {
    for (const [name, value] of Object.entries({ x, y, width, height })) attribute(spot, name, value);
  });
  frame();
}

/** The part that is seen, on the overview. */
function frame() {
  const { scroll, shown, map } = view;
  if (map.hasAttribute("hidden")) return;
  const seen = { x: scroll.scrollLeft, y: scroll.scrollTop, width: scroll.clientWidth, height: scroll.clientHeight };
  for (const [name, value] of Object.entries(seen)) attribute(map.lastChild, name, (value / shown).toFixed(1));
}

function lookAt(event) {
  const box = view.map.getBoundingClientRect();
  const { width, height } = view.size;
  // The overview keeps the shape of the drawing: margins are left where that of the box differs.
  const part = Math.min(box.width / width, box.height / height);
  const x = (event.clientX - box.left - (box.width - width * part) / 2) / part;
  const y = (event.clientY - box.top - (box.height - height * part) / 2) / part;
  view.scroll.scrollTo(x * view.shown - view.scroll.clientWidth / 2, y * view.shown - view.scroll.clientHeight / 2);
}

function drag(event) {
  if (event.button !== 0 || event.pointerType !== "mouse") return;
  const { scroll } = view;
  const begin = { x: event.clientX, y: event.clientY, left: scroll.scrollLeft, top: scroll.scrollTop };
  const move = (next) => {
    const [x, y] = [next.clientX - begin.x, next.clientY - begin.y];
    if (!scroll.hasPointerCapture(event.pointerId)) {
      if (Math.hypot(x, y) < DRAG_FROM) return;
      scroll.setPointerCapture(event.pointerId);
      scroll.dataset.dragged = "";
    }
    scroll.scrollTo(begin.left - x, begin.top - y);
  };
  const end = () => {
    scroll.removeEventListener("pointermove", move);
    delete scroll.dataset.dragged;
  };
  scroll.addEventListener("pointermove", move);
  for (const name of ["pointerup", "pointercancel"]) scroll.addEventListener(name, end, { once: true });
}

export function startZoom(redraw) {
  view.redraw = redraw;
  view.scroll = byId("plan-scroll");
  view.map = s("svg", { class: "plan-map", ...MAP, "aria-hidden": "true", hidden: true, onpointerdown: lookAt, onpointermove: (event) => event.buttons === 1 && lookAt(event) }, s("g"), s("rect", { class: "seen" }));
  view.scroll.after(view.map);
  const button = (words, sign, act) => h("button", { type: "button", class: "plain", "aria-label": words, title: words, onclick: act }, sign);
  byId("plan-tools").append(
    button("Draw the plan smaller", "−", () => zoom(view.shown / STEP)),
    button("Draw the plan larger", "+", () => zoom(view.shown * STEP)),
    button("Show the whole plan", "Fit", () => zoom(fitting())),
  );
  view.scroll.addEventListener("scroll", frame, { passive: true });
  view.scroll.addEventListener("pointerdown", drag);
  view.scroll.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(view.shown * STEP ** (-event.deltaY / 100), { x: event.clientX, y: event.clientY });
  }, { passive: false });
}
