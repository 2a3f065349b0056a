/* A small line of the last minute, drawn once and then only redrawn. */

import { s } from "./dom.js";

const POINTS = 60;
/** Samples that are needed: the first has no other to measure its time by. */
export const SPARK_SAMPLES = POINTS + 1;
const [WIDTH, HEIGHT] = [104, 26];

export function sparkline() {
  return s("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, s("path", { class: "fill" }), s("path", { class: "stroke" }));
}

export function drawSparkline(svg, values) {
  const recent = values.slice(-POINTS);
  const [fill, stroke] = svg.children;
  if (recent.length < 2) {
    fill.setAttribute("d", "");
    stroke.setAttribute("d", "");
    return;
  }
  const most = Math.max(...recent, 1e-9);
  const points = recent.map((value, index) => {
    const x = WIDTH - ((recent.length - 1 - index) * WIDTH) / (POINTS - 1);
    return `${x.toFixed(1)} ${(HEIGHT - 2 - (value / most) * (HEIGHT - 4)).toFixed(1)}`;
  });
  const line = `M${points.join("L")}`;
  stroke.setAttribute("d", line);
  fill.setAttribute("d", `${line}V${HEIGHT}H${points[0].split(" ")[0]}Z`);
}
