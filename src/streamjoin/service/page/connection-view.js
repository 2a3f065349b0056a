/* Whether what is shown is live: the lamp in the header, the banner with the countdown, and dimmed panels. */

import { attribute, byId, h, say } from "./dom.js";
import { retryNow } from "./connection.js";
import { state, watch } from "./store.js";
import { sentence, whole } from "./format.js";

/* Without these the page would only be drawn to be drawn again. */
const NEEDED = ["queries", "streams", "plan", "info"];

function words() {
  const { connection, samples } = state;
  const batch = samples.at(-1)?.batch;
  if (connection.state === "live") return batch === undefined ? "Live, no batch yet" : `Live, batch ${whole(batch)}`;
  if (connection.state === "lost") return connection.reached ? "Disconnected" : "Not connected";
  return connection.state === "locked" ? "Needs a token" : "Connecting";
}

function show() {
  const { connection } = state;
  const lamp = byId("connection");
  attribute(lamp, "data-state", connection.state);
  say(lamp.querySelector(".words"), words());
  const lost = connection.state === "lost";
  const failed = connection.state === "live" && state.ready.status === "failed";
  const banner = byId("banner");
  banner.hidden = !lost && !failed;
  byId("retry").hidden = !lost;
  attribute(byId("main"), "data-stale", failed || (lost && connection.reached));
  attribute(byId("main"), "data-loading", NEEDED.some((part) => state[part] === null));
  const place = banner.querySelector(".banner-words");
  if (lost) sayWhy(place, connection);
  if (failed) put(place, "The engine stopped.", `${sentence(state.ready.reason)} What is shown is old; start the service again.`);
}

function sayWhy(place, { until, reached, reason }) {
  const title = reached ? "Connection lost." : "The service can't be reached.";
  const left = until ? Math.max(0, Math.ceil((until - Date.now()) / 1000)) : 0;
  const next = left ? `Trying again in ${left} s.` : "Trying again …";
  const old = reached ? "What is shown is old. " : "";
  put(place, title, `${reason ? `${reason} ` : ""}${old}${next}`);
}

function put(place, title, text) {
  if (place.dataset.title !== title) {
    place.dataset.title = title;
    place.replaceChildren(h("strong", {}, title), " ", h("span"));
  }
  say(place.querySelector("span"), text);
}

export function startConnectionView() {
  byId("retry").addEventListener("click", retryNow);
  watch(["connection", "ready", "samples", ...NEEDED], show);
  setInterval(() => state.connection.state === "lost" && show(), 500);
  show();
}
