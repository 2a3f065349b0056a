/* Keeps the page in step with the service: loads everything, follows the events, and starts over with growing pauses when it is gone. */

import { Problem, Unreachable, get, subscribe } from "./api.js";
import { MOST_SAMPLES, addChange, addSample, change, state } from "./store.js";
import { announce } from "./dom.js";
import { askForToken } from "./token.js";

const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 10_000;
const SILENCE = 45_000;
const LISTS_EVERY = 1000;
const PLAN_EVERY = 3000;
const IDLE_EVERY = 5000;
const STARTING_PAUSE = 1000;
const ASLEEP_AFTER = 60_000;

const asked = { lists: 0, plan: 0, changed: false };
let wake = () => {};
let link = null;

class Asleep extends Error {}

export function retryNow() {
  wake();
}

export async function keepConnected() {
  setInterval(refresh, 250);
  addEventListener("online", retryNow);
  sleepWhileHidden();
  let failures = 0;
  let reached = false;
  for (;;) {
    try {
      await follow(() => {
        if (failures && reached) announce("Connected again.");
        failures = 0;
        reached = true;
      });
    } catch (error) {
      if (error instanceof Problem && error.status === 401) {
        change({ connection: { state: "locked" } });
        await askForToken();
        continue;
      }
      if (error instanceof Asleep) {
        change({ connection: { state: "connecting" } });
        await shown();
        continue;
      }
      failures += 1;
      await pause(failures, error, reached);
    }
  }
}

async function follow(connected) {
  link = new AbortController();
  const silent = () => link.abort();
  let timer = setTimeout(silent, SILENCE);
  try {
    // Subscribed before loading: what happens meanwhile waits in the stream, and what is known already is passed over.
    const events = await subscribe("events", link.signal);
    await load(link.signal);
    change({ connection: { state: "live" } });
    connected();
    for await (const { event, data } of events) {
      clearTimeout(timer);
      timer = setTimeout(silent, SILENCE);
      take(event, data);
    }
    throw new Unreachable("The service closed the connection.");
  } catch (error) {
    const { reason } = link.signal;
    throw reason instanceof Problem || reason instanceof Asleep ? reason : error;
  } finally {
    clearTimeout(timer);
    link.abort();
  }
}

/** A hidden page lets its connections go: a browser has only six for a host, and tabs are forgotten. */
function sleepWhileHidden() {
  let timer;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => link?.abort(new Asleep()), ASLEEP_AFTER);
  });
}

const shown = () =>
  new Promise((resolve) => {
    if (!document.hidden) resolve();
    else document.addEventListener("visibilitychange", resolve, { once: true });
  });

/** Whether the engine runs: the service may answer while its engine has failed. */
async function readiness(signal) {
  try {
    return await get("ready", { signal });
  } catch (error) {
    if (error instanceof Problem && error.status === 503) return error.body;
    throw error;
  }
}

async function load(signal) {
  const ready = readiness(signal);
  const [info, streams, queries, plan, history, changelog] = await Promise.all(
    ["info", "streams", "queries", "plan?format=json", "history", "changelog"].map((path) => get(path, { signal })),
  );
  change({ ready: await ready, info, plan, queries: queries.queries, streams: streams.streams, samples: history.samples, changes: changelog.changes.slice(-MOST_SAMPLES) });
  asked.lists = asked.plan = Date.now();
}

function take(event, data) {
  if (event === "batch") {
    addSample(data);
    asked.changed ||= Boolean(data.decisions?.length || data.changes?.length);
  } else if (event === "change") {
    addChange(data);
    asked.changed = true;
  } else if (event === "skipped") {
    catchUp();
  }
}

/** The service sent more than this page could take: what was left out is in the history. */
async function catchUp() {
  const history = await get("history").catch(() => null);
  if (history) change({ samples: history.samples });
}

/** Lists and plan are asked for again as batches come, not more often than people can read. */
async function refresh() {
  if (state.connection.state !== "live" || document.hidden || asked.busy) return;
  const now = Date.now();
  const moved = (state.samples.at(-1)?.at ?? 0) * 1000 > asked.lists - LISTS_EVERY;
  const lists = asked.changed || now - asked.lists >= (moved ? LISTS_EVERY : IDLE_EVERY);
  const plan = asked.changed || now - asked.plan >= PLAN_EVERY;
  if (!lists && !plan) return;
  asked.busy = true;
  asked.changed = false;
  try {
    if (lists) {
      asked.lists = now;
      const [ready, streams, queries] = await Promise.all([readiness(), get("streams"), get("queries")]);
      change({ ready, queries: queries.queries, streams: streams.streams });
    }
    if (plan) {
      asked.plan = now;
      change({ plan: await get("plan?format=json") });
    }
  } catch (error) {
    if (error instanceof Problem && error.status === 401) link?.abort(error);
  } finally {
    asked.busy = false;
  }
}

/** After a change made here: don't wait for the next turn. */
export function refreshSoon() {
  asked.changed = true;
}

async function pause(failures, error, reached) {
  const most = Math.min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (failures - 1));
  const starting = error instanceof Problem && error.status === 503;
  const length = starting ? STARTING_PAUSE : most * (0.75 + Math.random() / 4);
  const reason = starting ? `It is not ready: ${error.message}.` : error instanceof Problem ? error.message : "";
  if (failures === 1) announce(reached ? "Connection lost. What is shown is old." : "The service can't be reached.");
  change({ connection: { state: "lost", until: Date.now() + length, reached, reason } });
  await new Promise((resolve) => {
    wake = resolve;
    setTimeout(resolve, length);
  });
  change({ connection: { ...state.connection, until: null } });
}
