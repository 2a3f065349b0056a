/* The registered streams: how fast they come, how far behind they are, what columns they have. */

import { byId, empty, h, reconcile, say, skeleton } from "./dom.js";
import { count, lag, percent, plural, rate, sentence, whole } from "./format.js";
import { SPARK_SAMPLES, drawSparkline, sparkline } from "./sparkline.js";
import { DRAWN_SECONDS, series, watch } from "./store.js";

/** Less back-pressure than this is the ordinary wait for the next batch. */
const HELD_BACK = 0.1;

const part = (name) => h("span", { "data-part": name });

function created(stream) {
  const columns = stream.columns.map(([name, type]) =>
    h("li", { class: "chip" }, name, h("span", { class: "type" }, name === stream.time ? `${type}, time` : type)),
  );
  return h(
    "li",
    { class: "stream live" },
    h("details", {}, h("summary", {}, h("h3", {}, stream.name), plural(stream.columns.length, "column")), h("ul", { class: "chips" }, columns), h("p", { class: "watermark quiet" })),
    sparkline(),
    h("p", { class: "rates" }, part("rate"), part("lag"), part("rows"), part("late")),
    h("p", { class: "note" }),
    h("p", { class: "problem", hidden: true }),
  );
}

/** What is seldom so, in a place that is always there. */
function notes({ backpressure, untimed, malformed }) {
  const held = backpressure >= HELD_BACK ? `waited for the engine ${percent(backpressure)} of the time` : "";
  return [held, untimed && `${whole(untimed)} without a time`, malformed && `${whole(malformed)} malformed`].filter(Boolean);
}

function updated(element, stream, samples) {
  const put = (name, value) => say(element.querySelector(`[data-part="${name}"]`), value);
  put("rate", rate(stream.rows_per_second));
  put("lag", stream.lag_seconds === null ? "" : `${lag(Math.abs(stream.lag_seconds))} ${stream.lag_seconds < 0 ? "ahead" : "behind"}`);
  put("rows", `${count(stream.rows)} rows`);
  put("late", `${whole(stream.late ?? 0)} late`);
  say(element.querySelector(".note"), notes(stream).join(", "));
  say(element.querySelector(".watermark"), stream.watermark === null ? "No watermark yet." : `Watermark ${stream.watermark}: what is older is late.`);
  const problem = element.querySelector(".problem");
  problem.hidden = !stream.error;
  const again = stream.retry_at ? `Next attempt at ${new Date(stream.retry_at * 1000).toLocaleTimeString()}.` : "";
  say(problem, [sentence(stream.error), again].filter(Boolean).join(" "));
  drawSparkline(element.querySelector(".spark"), series(samples.slice(-SPARK_SAMPLES), "rows_in", stream.name, DRAWN_SECONDS));
}

export function startStreams() {
  const body = byId("streams-body");
  const list = h("ul", { "aria-label": "Streams" });
  body.append(skeleton());
  watch(["streams", "samples"], ({ streams, samples }) => {
    if (streams === null) return;
    say(byId("streams-summary"), streams.length ? "" : "none");
    if (!streams.length) {
      body.replaceChildren(empty("No streams", "The service has no streams to join. Add some to its TOML file and restart it; streamjoin init writes one with demo streams."));
      return;
    }
    if (body.firstChild !== list) body.replaceChildren(list);
    reconcile(list, streams, (stream) => stream.name, created, (element, stream) => updated(element, stream, samples));
  });
}
