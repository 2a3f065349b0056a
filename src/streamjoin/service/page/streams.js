/* The registered streams: how fast they come, how far behind they are, what columns they have. */

import { byId, empty, h, reconcile, say, skeleton } from "./dom.js";
import { age, count, plural, rate, sentence, share, whole } from "./format.js";
import { SPARK_SAMPLES, drawSparkline, sparkline } from "./sparkline.js";
import { series, watch } from "./store.js";

/** Less back-pressure than this is the ordinary wait for the next batch. */
const HELD_BACK = 0.1;

const part = (name) => h("span", {}, h("b", { "data-part": name }), " ", h("span", { "data-part": `${name}-words` }));

function created(stream) {
  const columns = stream.columns.map(([name, type]) =>
    h("li", { class: "chip" }, name, h("span", { class: "type" }, name === stream.time ? `${type}, time` : type)),
  );
  return h(
    "li",
    { class: "stream live" },
    h("div", {}, h("h3", { class: "name" }, stream.name), h("p", { class: "rates" }, part("rate"), part("lag"), part("pressure"), part("rows"), part("late"), part("malformed"))),
    sparkline(),
    h("p", { class: "problem", hidden: true }),
    h("details", {}, h("summary", {}, plural(stream.columns.length, "column")), h("ul", { class: "chips" }, columns), h("p", { class: "watermark quiet" })),
  );
}

function updated(element, stream, samples) {
  const put = (name, value, words) => {
    say(element.querySelector(`[data-part="${name}"]`), value);
    say(element.querySelector(`[data-part="${name}-words"]`), words);
  };
  put("rate", rate(stream.rows_per_second), "");
  element.querySelector('[data-part="lag"]').parentElement.hidden = stream.lag_seconds === null;
  const lag = Math.abs(stream.lag_seconds ?? 0);
  put("lag", lag < 1 ? `${Math.round(lag * 1000)} ms` : age(lag), stream.lag_seconds < 0 ? "ahead of the clock" : "behind");
  element.querySelector('[data-part="pressure"]').parentElement.hidden = !(stream.backpressure >= HELD_BACK);
  put("pressure", share(stream.backpressure), "of the time held back");
  put("rows", count(stream.rows), "rows");
  put("late", whole(stream.late ?? 0), stream.untimed ? `late, ${whole(stream.untimed)} without a time` : "late");
  element.querySelector('[data-part="malformed"]').parentElement.hidden = !stream.malformed;
  put("malformed", whole(stream.malformed ?? 0), "malformed");
  say(element.querySelector(".watermark"), stream.watermark === null ? "No watermark yet." : `Watermark ${stream.watermark}: what is older is late.`);
  const problem = element.querySelector(".problem");
  problem.hidden = !stream.error;
  const again = stream.retry_at ? `Next attempt at ${new Date(stream.retry_at * 1000).toLocaleTimeString()}.` : "";
  say(problem, [sentence(stream.error), again].filter(Boolean).join(" "));
  drawSparkline(element.querySelector(".spark"), series(samples.slice(-SPARK_SAMPLES), "rows_in", stream.name));
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
