/* What the page knows, and who is told when it changes. Listeners run once a turn, however often it changed. */

const MOST_SAMPLES = 600;

export const state = {
  connection: { state: "connecting" },
  info: null,
  ready: { status: "ready", reason: null },
  streams: null,
  queries: null,
  plan: null,
  samples: [],
  changes: [],
  chosen: null,
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

/** Seconds that a sample stands for: since the one before (the first: until the next), or its own length. */
export const span = (samples, index) => {
  const sample = samples[index];
  const [before, after] = [samples[index - 1], samples[index + 1]];
  const apart = before ? sample.at - before.at : after ? after.at - sample.at : 0;
  return Math.max(apart, sample.seconds, 1e-3);
};

const total = (counts) => Object.values(counts ?? {}).reduce((sum, rows) => sum + rows, 0);

/** Rows a second by sample: of one name, or of all together. */
export const series = (samples, field, name) =>
  samples.map((sample, index) => (name === undefined ? total(sample[field]) : (sample[field]?.[name] ?? 0)) / span(samples, index));
