/* Keeps the page in step with the service: loads everything, follows the events, and starts over with growing pauses when it is gone. */

import { Problem, Unreachable, get, subscribe } from "./api.js";
import { addChange, addSample, change, putChanges, putHistory, putQuery, state } from "./store.js";
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

/* Every panel has its own request, so that none waits for another; how often it is asked for again, and how to keep it. */
const PARTS = {
  ready: { every: LISTS_EVERY, ask: readiness, keep: (ready) => change({ ready }) },
  activity: { every: LISTS_EVERY, path: "activity", keep: (activity) => change({ activity }) },
  queries: { every: LISTS_EVERY, idle: IDLE_EVERY, path: "queries", keep: ({ queries }) => change({ queries }) },
  streams: { every: LISTS_EVERY, idle: IDLE_EVERY, path: "streams", keep: ({ streams }) => change({ streams }) },
  plan: { every: PLAN_EVERY, path: "plan?format=json", keep: (plan) => change({ plan }) },
  info: { path: "info", keep: (info) => change({ info }) },
  history: { path: "history", keep: ({ samples }) => putHistory(samples) },
  changelog: { path: "changelog", keep: ({ changes }) => putChanges(changes) },
};
const AFTER_CHANGE = ["queries", "streams", "plan"];
const asked = new Map();
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
    await load();
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

/** Ask for one part, unless its answer is awaited already. */
async function fetchPart(name) {
  const { path, ask = (signal) => get(path, { signal }), keep } = PARTS[name];
  if (asked.get(name)?.busy) return;
  const turn = { at: Date.now(), busy: true, done: false };
  asked.set(name, turn);
  const { signal } = link;
  try {
    const answer = await ask(signal);
    if (!signal.aborted) keep(answer);
    turn.done = true;
  } finally {
    turn.busy = false;
  }
}

/** Ask again where it failed: the service may be too busy for one panel and not for the others. */
const again = (name) =>
  fetchPart(name).catch((error) => {
    if (error instanceof Problem && error.status === 401) link?.abort(error);
  });

/** The list of queries says whether the service answers; the other panels come when they come. */
async function load() {
  asked.clear();
  for (const name of Object.keys(PARTS)) if (name !== "queries") again(name);
  await fetchPart("queries");
}

function take(event, data) {
  if (event === "batch") {
    addSample(data);
    if (data.plan_changes?.length || data.changes?.length) refreshSoon();
  } else if (event === "state") {
    // Told at once, also while no batch comes. A stream that failed is the reason of several queries.
    putQuery(data);
    refreshSoon();
  } else if (event === "change") {
    addChange(data);
    refreshSoon();
  } else if (event === "skipped") {
    // The service sent more than this page could take: what was left out is in the history.
    again("history");
  }
}

/** Lists and plan are asked for again as batches come, not more often than people can read. */
function refresh() {
  if (state.connection.state !== "live" || document.hidden) return;
  const now = Date.now();
  const moved = (state.samples.at(-1)?.at ?? 0) * 1000 > now - 2 * LISTS_EVERY;
  for (const [name, { every, idle = every }] of Object.entries(PARTS)) {
    const turn = asked.get(name);
    const pause = turn?.done === false ? LISTS_EVERY : moved ? every : idle;
    if (!turn || now - turn.at >= (pause ?? Number.POSITIVE_INFINITY)) again(name);
  }
}

/** After a change: don't wait for the next turn. */
export function refreshSoon() {
  for (const name of AFTER_CHANGE) {
    const turn = asked.get(name);
    if (turn) turn.at = 0;
  }
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
