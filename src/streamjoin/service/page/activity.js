/* What happened, from changes, decisions and scaling: one list, for the time line's marks and for reading. */

const WORDS = { create: "created", drop: "dropped", pause: "paused", resume: "resumed", register: "registered" };

export const KINDS = {
  change: { name: "Change", mark: "M0-5 5 0 0 5-5 0Z" },
  decision: { name: "Optimizer", mark: "M-4.5-4.5h9v9h-9Z" },
  scaling: { name: "Scaling", mark: "M0-5.5 5.5 4.5h-11Z" },
};

const text = (entry) => (typeof entry === "string" ? entry : (entry.text ?? [entry.what, entry.why].filter(Boolean).join(", because ")));
const batchOf = (entry) => (typeof entry === "string" ? Number(/^batch (\d+)/.exec(entry)?.[1] ?? Number.NaN) : entry.batch);
const tidy = (words) => words.replace(/^batch -?\d+: /, "");

function changeEntry(change) {
  const words = `${change.name} ${WORDS[change.action] ?? change.action}${change.reason ? `: ${change.reason}` : ""}`;
  return { key: `change ${change.serial}`, kind: "change", at: change.at, batch: change.batch, words };
}

/** In order of time. Decisions that came with the plan but with no sample of their batch are left out: nothing says when. */
export function happenings({ samples, changes, plan }) {
  const found = changes.map(changeEntry);
  const seen = new Set();
  const add = (kind, sample, entry) => {
    const words = tidy(text(entry));
    const key = `${kind} ${sample.batch} ${words}`;
    if (seen.has(key)) return;
    seen.add(key);
    found.push({ key, kind, at: sample.at, batch: sample.batch, words });
  };
  const byBatch = new Map(samples.map((sample) => [sample.batch, sample]));
  for (const sample of samples) {
    for (const entry of sample.decisions ?? []) add("decision", sample, entry);
    for (const entry of sample.scaling ?? []) add("scaling", sample, entry);
  }
  for (const entry of plan?.decisions ?? []) {
    const sample = byBatch.get(batchOf(entry));
    if (sample) add("decision", sample, entry);
  }
  return found.sort((a, b) => a.at - b.at);
}
