/* Where the nodes of a layered graph go. Pure: a graph in, places out.

Layers by longest path (sources first, sinks last), order within a layer by the mean place of neighbours, places by the
least moves that keep the order and the gaps. Edges that skip layers bend around what is between: they have a thin
stand-in in every layer they pass. */

const SWEEPS = 12;
/** More are drawn nearer to each other. */
const MANY_LAYERS = 4;
const FLOORS = { source: 0, selection: 1, join: 2, window: 2, groups: 3, sink: 3 };

export function layout(nodes, edges, { width, height, across, along, vertical = false }) {
  const known = new Map(nodes.map((node) => [node.id, node]));
  const flows = acyclic([...known.keys()], edges.filter(({ from, to }) => known.has(from) && known.has(to) && from !== to));
  const ranks = ranked(known, flows);
  const layers = layered(known, flows, ranks);
  order(layers);
  const thick = vertical ? width : height;
  place(layers, thick, across);
  return drawn(layers, flows, { width, height, across, along: layers.length > MANY_LAYERS ? along / 2 : along, vertical });
}

/** Without the edges that close a circle; a plan has none, a wrong answer may. */
function acyclic(ids, edges) {
  const out = new Map(ids.map((id) => [id, []]));
  for (const edge of edges) out.get(edge.from).push(edge);
  const seen = new Map();
  const kept = [];
  const visit = (id) => {
    seen.set(id, "open");
    for (const edge of out.get(id)) {
      if (seen.get(edge.to) === "open") continue;
      kept.push(edge);
      if (!seen.has(edge.to)) visit(edge.to);
    }
    seen.set(id, "done");
  };
  for (const id of ids) if (!seen.has(id)) visit(id);
  return kept;
}

function ranked(known, edges) {
  const into = new Map([...known.keys()].map((id) => [id, []]));
  for (const { from, to } of edges) into.get(to).push(from);
  const ranks = new Map();
  const rank = (id) => {
    if (!ranks.has(id)) {
      ranks.set(id, Math.max(FLOORS[known.get(id).kind] ?? 1, ...into.get(id).map((before) => rank(before) + 1)));
    }
    return ranks.get(id);
  };
  for (const id of known.keys()) rank(id);
  const last = Math.max(0, ...ranks.values());
  for (const [id, node] of known) if (node.kind === "sink") ranks.set(id, last);
  const used = [...new Set(ranks.values())].sort((a, b) => a - b);
  return new Map([...ranks].map(([id, value]) => [id, used.indexOf(value)]));
}

function layered(known, edges, ranks) {
  const layers = Array.from({ length: Math.max(0, ...ranks.values()) + 1 }, () => []);
  const cells = new Map();
  const cell = (id, rank, real) => {
    const made = { id, rank, real, before: [], after: [] };
    cells.set(id, made);
    layers[rank].push(made);
    return made;
  };
  for (const id of known.keys()) cell(id, ranks.get(id), true);
  edges.forEach((edge, number) => {
    edge.path = [cells.get(edge.from)];
    for (let rank = ranks.get(edge.from) + 1; rank < ranks.get(edge.to); rank += 1) edge.path.push(cell(`\u0000${number}:${rank}`, rank, false));
    edge.path.push(cells.get(edge.to));
    for (let step = 1; step < edge.path.length; step += 1) {
      edge.path[step - 1].after.push(edge.path[step]);
      edge.path[step].before.push(edge.path[step - 1]);
    }
  });
  return layers;
}

const mean = (cells, field) => cells.reduce((sum, cell) => sum + cell[field], 0) / cells.length;

function order(layers) {
  const number = () => layers.forEach((layer) => layer.forEach((cell, index) => (cell.index = index)));
  number();
  let best = null;
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const crossed = crossings(layers);
    if (!best || crossed < best.crossed) best = { crossed, orders: layers.map((layer) => [...layer]) };
    if (crossed === 0) break;
    const side = sweep % 2 ? "after" : "before";
    const turn = sweep % 2 ? [...layers].reverse() : layers;
    for (const layer of turn) {
      for (const cell of layer) cell.wish = cell[side].length ? mean(cell[side], "index") : cell.index;
      layer.sort((a, b) => a.wish - b.wish || a.index - b.index);
      layer.forEach((cell, index) => (cell.index = index));
    }
  }
  layers.forEach((layer, rank) => layer.splice(0, layer.length, ...best.orders[rank]));
  number();
}

function crossings(layers) {
  let found = 0;
  for (const layer of layers) {
    const ends = layer.flatMap((cell) => cell.after.map((next) => next.index).sort((a, b) => a - b));
    for (let i = 0; i < ends.length; i += 1) for (let j = i + 1; j < ends.length; j += 1) found += ends[i] > ends[j];
  }
  return found;
}

/** Places across the flow: each cell as near to its neighbours as order and gaps allow. */
function place(layers, thick, gap) {
  const size = (cell) => (cell.real ? thick : thick / 4);
  for (const layer of layers) {
    let at = 0;
    for (const cell of layer) {
      cell.offset = at + size(cell) / 2;
      cell.at = cell.offset;
      at += size(cell) + gap;
    }
  }
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const side = sweep % 2 ? "before" : "after";
    for (const layer of sweep % 2 ? layers : [...layers].reverse()) {
      for (const cell of layer) {
        const near = cell[side].length ? cell[side] : [];
        cell.wish = (near.length ? mean(near, "at") : cell.at) - cell.offset;
      }
      settle(layer);
    }
  }
  const least = Math.min(...layers.flat().map((cell) => cell.at - size(cell) / 2));
  for (const cell of layers.flat()) cell.at -= least;
}

/** The wishes, made to ascend with the least change (pooling of adjacent violators). */
function settle(layer) {
  const pools = [];
  for (const cell of layer) {
    let pool = { sum: cell.wish, cells: [cell] };
    while (pools.length && pools.at(-1).sum / pools.at(-1).cells.length > pool.sum / pool.cells.length) {
      const previous = pools.pop();
      pool = { sum: previous.sum + pool.sum, cells: [...previous.cells, ...pool.cells] };
    }
    pools.push(pool);
  }
  for (const { sum, cells } of pools) for (const cell of cells) cell.at = sum / cells.length + cell.offset;
}

function drawn(layers, edges, { width, height, along, vertical }) {
  const length = vertical ? height : width;
  const point = (cell) => {
    const main = cell.rank * (length + along) + length / 2;
    return vertical ? { x: cell.at, y: main } : { x: main, y: cell.at };
  };
  const cells = layers.flat();
  const places = new Map(cells.filter(({ real }) => real).map((cell) => [cell.id, { ...point(cell), rank: cell.rank, index: cell.index }]));
  const bends = edges.map(({ from, to, path }) => ({ from, to, bends: path.slice(1, -1).map(point) }));
  const far = (field, size) => Math.max(0, ...[...places.values()].map((place) => place[field] + size / 2), ...bends.flatMap((edge) => edge.bends.map((bend) => bend[field])));
  return { places, edges: bends, width: far("x", width), height: far("y", height) };
}
