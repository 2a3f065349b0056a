/* What happened, in words, from changes, the optimizer and scaling: one list, for the time line's marks and for reading. */

import { names, plural } from "./format.js";
import { saved } from "./plan-inspector.js";

const WORDS = { create: "created", drop: "dropped", pause: "paused", resume: "resumed", register: "registered" };

export const KINDS = {
  change: { name: "Change", mark: "M0-5 5 0 0 5-5 0Z" },
  decision: { name: "Sharing", mark: "M-4.5-4.5h9v9h-9Z" },
  scaling: { name: "Scaling", mark: "M0-5.5 5.5 4.5h-11Z" },
};

const who = (queries, one, many) => `${names(queries)} ${queries.length > 1 ? many : one}`;

/* Each rule of the optimizer, as one would say it. */
const RULES = {
  share_eagerly: ({ queries, figures }) => {
    const [shared, all] = [figures["shared steps"], figures.steps];
    if (all === undefined) return who(queries, "has no join step to share", "have no join step to share");
    if (!shared) return `${who(queries, "computes its", "compute their")} own join steps: no other query has them`;
    if (shared === all) return `${who(queries, "uses", "use")} join steps that run already`;
    return `${who(queries, "uses some of its", "use some of their")} join steps together with others`;
  },
  group_by_cost: ({ queries, figures }) => `${plural(queries.length, "query", "queries")} of the same join (${names(queries)}) are computed in other groups${saved(figures)}`,
  reorder_joins: ({ queries, figures }) => `${who(queries, "joins", "join")} the streams in another order${saved(figures)}`,
};

const plannedWords = (change) => RULES[change.rule]?.(change) ?? `${change.what}, because ${change.why}`;

/** New queries of one batch that share alike are said at once. */
function together(changes) {
  const groups = new Map();
  const rest = [];
  for (const change of changes) {
    const { rule, figures, queries } = change;
    const alike = rule === "share_eagerly" ? String(Math.sign(figures["shared steps"]) + (figures["shared steps"] === figures.steps)) : null;
    if (alike === null) rest.push(change);
    else groups.set(alike, { ...change, queries: [...new Set([...(groups.get(alike)?.queries ?? []), ...queries])] });
  }
  return [...groups.values(), ...rest];
}

/** Changes of one kind in one batch are one entry; a failure has a reason of its own. */
function changeEntries(changes) {
  const entries = new Map();
  for (const change of changes) {
    const { action, batch, name, reason, serial, at } = change;
    const key = reason ? `change ${serial}` : `change ${action} ${batch}`;
    const words = (queries) => (reason ? `${name} ${action === "pause" ? "failed" : action}: ${reason}` : `${names(queries)} ${WORDS[action] ?? action}`);
    const entry = entries.get(key) ?? { kind: "change", at, batch, queries: [] };
    entry.queries.push(name);
    entries.set(key, { ...entry, key: `${key} ${entry.queries.length}`, words: words(entry.queries) });
  }
  return [...entries.values()];
}

/** In order of time. What the optimizer looked at and left as it was is not said. */
export function happenings({ samples, changes }) {
  const entries = changeEntries(changes);
  for (const sample of samples) {
    const add = (kind, words, queries) => entries.push({ key: `${kind} ${sample.batch} ${words}`, kind, at: sample.at, batch: sample.batch, words, queries });
    for (const change of together(sample.plan_changes ?? [])) add("decision", plannedWords(change), change.queries);
    for (const text of sample.scaling ?? []) add("scaling", text, []);
  }
  return entries.sort((a, b) => a.at - b.at);
}
