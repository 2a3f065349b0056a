/* What the page knows, and who is told when it changes. Listeners run once a turn, however often it changed. */

export const MOST_SAMPLES = 600;

export const state = {
  connection: { state: "connecting" },
  info: null,
  ready: { status: "ready", reason: null },
  streams: null,
  queries: null,
  plan: null,
  samples: [],
  changes: [],
  /* The batch that runs now. */
  activity: null,
  chosen: null,
  /* Part of a name: the paths of these queries are lit in the plan. */
  traced: "",
  hovered: null,
};

const listeners = [];
let dirty = new Set();

/** Call `listener` after any of `keys` changed. */
export function watch(keys, listener) {
  listeners.push({ keys, listener });
}

export function change(patch) {
  const first = dirty.size === 0;
  for (const [key, value] of Object.entries(patch)) {
    state[key] = value;
    dirty.add(key);
  }
  if (first && dirty.size) queueMicrotask(flush);
}

function flush() {
  const changed = dirty;
  dirty = new Set();
  for (const { keys, listener } of listeners) {
    if (keys.some((key) => changed.has(key))) listener(state);
  }
}

export function addSample(sample) {
  const last = state.samples.at(-1);
  if (last && sample.batch <= last.batch) return;
  change({ samples: [...state.samples, sample].slice(-MOST_SAMPLES) });
}

export function addChange(record) {
  const last = state.changes.at(-1);
  if (last && record.serial <= last.serial) return;
  change({ changes: [...state.changes, record].slice(-MOST_SAMPLES) });
}

/** The history as the service has it, and what came after it was asked for. */
export function putHistory(samples) {
  const last = samples.at(-1)?.at ?? 0;
  change({ samples: [...samples, ...state.samples.filter(({ at }) => at > last)].slice(-MOST_SAMPLES) });
}

export function putChanges(changes) {
  const last = changes.at(-1)?.at ?? 0;
  change({ changes: [...changes, ...state.changes.filter(({ at }) => at > last)].slice(-MOST_SAMPLES) });
}

/** A query as the service just described it, in place of what was known of it. */
export function putQuery(query) {
  const others = (state.queries ?? []).filter((known) => known.name !== query.name);
  const known = (state.queries ?? []).findIndex((other) => other.name === query.name);
  if (known < 0) change({ queries: [...others, query] });
  else change({ queries: state.queries.map((other) => (other.name === query.name ? query : other)) });
}

export function removeQuery(name) {
  change({ queries: (state.queries ?? []).filter((query) => query.name !== name) });
  if (state.chosen === name) change({ chosen: null });
}

const total = (counts) => Object.values(counts ?? {}).reduce((sum, rows) => sum + rows, 0);
const rowsOf = (sample, field, name) => (name === undefined ? total(sample[field]) : (sample[field]?.[name] ?? 0));

/** Seconds over which rates are drawn, at least: streams have batches of their own, now two and now four in a second. */
export const DRAWN_SECONDS = 3;

/** Rows a second by sample, of one name or of all: over the last `seconds` at least, since batches may come in bursts. */
export function series(samples, field, name, seconds = 1) {
  const sums = [0];
  for (const sample of samples) sums.push(sums.at(-1) + rowsOf(sample, field, name));
  let from = 0;
  return samples.map(({ at, seconds: length }, index) => {
    while (from + 1 < index && at - samples[from + 1].at >= seconds) from += 1;
    const rows = index ? sums[index + 1] - sums[from + 1] : sums[1];
    // Nothing says when the one before the first was.
    const time = from === 0 ? Math.max(seconds, at - samples[0].at) : at - samples[from].at;
    return rows / Math.max(time, length);
  });
}
