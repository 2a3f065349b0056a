/* The plan as the picture needs it: what belongs to whom, in words; where it is large, equal branches folded into one. */

import { count, milliseconds, names, plural } from "./format.js";

const MOST_NODES = 36;
/** How many of a folded branch each click shows. */
export const UNFOLDED_AT_ONCE = 24;
export const KINDS = { source: "Source", selection: "Selection", join: "Join", window: "Window join", groups: "Groups", sink: "Sink" };
const MANY = {
  selection: ["selection", "selections"],
  join: ["join", "joins"],
  window: ["window join", "window joins"],
  groups: ["grouping", "groupings"],
  sink: ["query", "queries"],
};

/** Only queries, sorted, no name twice. */
const users = (node) => [...new Set(node.queries ?? [])].sort();

/** `unfolded` says how many of each folded branch are shown; the steps of the queries in `lit` are never folded. */
export function model(plan, { unfolded = new Map(), lit = new Set() } = {}) {
  const nodes = plan.nodes.map((node) => ({ ...node, queries: users(node), shared: users(node).length > 1 && node.kind !== "source" }));
  const all = nodes.reduce((sum, { load }) => sum + (load ?? 0), 0);
  for (const node of nodes) node.part = all > 0 ? (node.load ?? 0) / all : 0;
  if (nodes.length <= MOST_NODES) return { nodes, edges: plan.edges.map((edge) => ({ ...edge })), foldable: false };
  return { ...folded(nodes, plan.edges, unfolded, lit), foldable: true };
}

/** Steps are of one branch if they do the same to the same streams, whatever their conditions. */
function branches(nodes, edges) {
  const into = new Map(nodes.map(({ id }) => [id, []]));
  for (const { from, to } of edges) into.get(to)?.push(from);
  const known = new Map(nodes.map((node) => [node.id, node]));
  const found = new Map();
  const branch = (id) => {
    if (!found.has(id)) {
      const node = known.get(id);
      found.set(id, "");
      const before = [...new Set(into.get(id).filter((from) => known.has(from)).map(branch))].sort();
      const own = node.kind === "source" ? node.id : node.kind === "sink" ? "" : headed(node)[0];
      found.set(id, `${node.kind}(${own}:${before.join(" ")})`);
    }
    return found.get(id);
  };
  for (const { id } of nodes) branch(id);
  return found;
}

const sum = (nodes, field) => nodes.reduce((total, node) => total + (node[field] ?? 0), 0);

function bundle(id, members) {
  const [first] = members;
  const words = plural(members.length, ...MANY[first.kind]);
  const label = first.kind === "sink" ? words : `${headed(first)[0]}: ${words}`;
  const queries = [...new Set(members.flatMap((node) => node.queries))].sort();
  const figures = Object.fromEntries(["rows_per_second", "candidates_per_second", "load", "cardinality", "cost_shared", "cost_apart", "part"].map((field) => [field, sum(members, field)]));
  return { ...first, ...figures, id, label, queries, folded: members.length, decisions: [], shared: first.kind !== "sink" && queries.length > 1 };
}

function folded(nodes, edges, unfolded, lit) {
  const branchOf = branches(nodes, edges);
  const members = new Map();
  for (const node of nodes) {
    if (node.kind === "source" || node.queries.some((name) => lit.has(name))) continue;
    const branch = branchOf.get(node.id);
    members.set(branch, [...(members.get(branch) ?? []), node]);
  }
  const inside = new Map();
  const bundles = [];
  for (const [branch, equal] of members) {
    // The expensive ones are shown first.
    const ranked = [...equal].sort((a, b) => (b.load ?? 0) - (a.load ?? 0) || (b.rows_per_second ?? 0) - (a.rows_per_second ?? 0));
    const rest = ranked.slice(unfolded.get(branch) ?? 0);
    if (rest.length < 2) continue;
    const id = `folded ${branch}`;
    for (const node of rest) inside.set(node.id, id);
    bundles.push({ ...bundle(id, rest), branch });
  }
  const merged = new Map();
  for (const edge of edges) {
    const [from, to] = [inside.get(edge.from) ?? edge.from, inside.get(edge.to) ?? edge.to];
    const known = merged.get(`${from}\u0000${to}`);
    if (known) known.rows_per_second += edge.rows_per_second ?? 0;
    else merged.set(`${from}\u0000${to}`, { from, to, rows_per_second: edge.rows_per_second ?? 0 });
  }
  return { nodes: [...nodes.filter(({ id }) => !inside.has(id)), ...bundles], edges: [...merged.values()] };
}

/** A stream that three streams or more have in them twice is named once. */
function briefly(title) {
  const streams = title.split(" ⋈ ");
  const times = (name) => streams.filter((other) => other === name).length;
  return streams.length < 3 ? title : [...new Set(streams)].map((name) => (times(name) > 1 ? `${name} ×${times(name)}` : name)).join(" ⋈ ");
}

/** A label in two: what it is, and what tells it from others. */
export function headed(node) {
  const [, title, rest] = /^(.+?)(?:: | → )(.+)$/su.exec(node.label) ?? [null, node.label, ""];
  if (node.folded) return [title, rest ? `${rest}, folded` : "folded"];
  return [briefly(title), node.kind === "sink" && node.detail ? `→ ${node.detail}` : node.detail || rest];
}

export function described(node) {
  const parts = [KINDS[node.kind] ?? node.kind, node.label];
  if (node.kind !== "sink" && node.queries.length) parts.push(node.shared ? `shared by ${names(node.queries)}` : `used by ${names(node.queries)}`);
  if (node.rows_per_second !== undefined) parts.push(`${count(node.rows_per_second)} rows per second`);
  if (node.load) parts.push(`${milliseconds(node.load * 1000)} per second`);
  if (node.folded) parts.push("select to unfold");
  return parts.join(", ");
}

export function summary(nodes) {
  const joins = nodes.filter(({ kind }) => kind === "join");
  const steps = joins.reduce((total, { folded: inside }) => total + (inside ?? 1), 0);
  const shared = joins.filter((node) => node.shared && !node.folded).length;
  return joins.length ? `${plural(steps, "join step")}${joins.some(({ folded: inside }) => inside) ? "" : `, ${shared} shared`}` : "";
}
