/* The plan as the picture needs it: what belongs to whom, in words; many sinks of the same joins folded into one. */

import { count, names, plural, share } from "./format.js";

const MOST_NODES = 36;
export const KINDS = { source: "Source", selection: "Selection", join: "Join", sink: "Sink" };

/** Only queries, sorted, no name twice. */
const users = (node) => [...new Set(node.queries ?? [])].sort();

export function model(plan) {
  const nodes = plan.nodes.map((node) => ({ ...node, queries: users(node), shared: users(node).length > 1 && node.kind !== "source" }));
  return nodes.length > MOST_NODES ? folded(nodes, plan.edges) : { nodes, edges: plan.edges.map((edge) => ({ ...edge })) };
}

function folded(nodes, edges) {
  const feeders = (id) => edges.filter(({ to }) => to === id).map(({ from }) => from).sort().join("\u0000");
  const bundles = new Map();
  for (const node of nodes.filter(({ kind }) => kind === "sink")) {
    const key = feeders(node.id);
    bundles.set(key, [...(bundles.get(key) ?? []), node]);
  }
  const renamed = new Map();
  const kept = nodes.filter(({ kind }) => kind !== "sink");
  for (const [key, sinks] of bundles) {
    if (sinks.length === 1) kept.push(sinks[0]);
    else {
      const id = `sinks:${key}`;
      for (const sink of sinks) renamed.set(sink.id, id);
      kept.push({ ...sinks[0], id, label: plural(sinks.length, "query", "queries"), queries: sinks.flatMap((sink) => sink.queries).sort(), rate: sinks.reduce((sum, sink) => sum + (sink.rate ?? 0), 0), reason: null });
    }
  }
  const merged = new Map();
  for (const edge of edges) {
    const [from, to] = [edge.from, renamed.get(edge.to) ?? edge.to];
    const known = merged.get(`${from}\u0000${to}`);
    if (known) known.rate += edge.rate ?? 0;
    else merged.set(`${from}\u0000${to}`, { from, to, rate: edge.rate ?? 0 });
  }
  return { nodes: kept, edges: [...merged.values()] };
}

/** A label in two: what it is, and the rest. */
export function headed(node) {
  const [, title, rest] = /^(.+?)(?:: | → |, )(.+)$/su.exec(node.label) ?? [null, node.label, ""];
  if (node.kind === "selection" && node.selectivity !== null && node.selectivity !== undefined) return [title, [rest, `${share(node.selectivity)} pass`].filter(Boolean).join(", ")];
  return [title, node.kind === "sink" && rest ? `→ ${rest}` : rest];
}

export function described(node) {
  const parts = [KINDS[node.kind] ?? node.kind, node.label];
  if (node.kind !== "sink" && node.queries.length) parts.push(node.shared ? `shared by ${names(node.queries)}` : `used by ${names(node.queries)}`);
  if (node.rate !== null && node.rate !== undefined) parts.push(`${count(node.rate)} rows a batch`);
  return parts.join(", ");
}

export function summary(nodes) {
  const joins = nodes.filter(({ kind }) => kind === "join");
  const shared = joins.filter((node) => node.shared).length;
  return joins.length ? `${plural(joins.length, "join step")}, ${shared} shared` : "";
}
