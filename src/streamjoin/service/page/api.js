/* REST and server-sent events, both with the token where there is one. `EventSource` can't send a header, so events are read from fetch. */

const KEY = "streamjoin.token";
const ROOT = new URL("api/v1/", document.baseURI);

export class Problem extends Error {
  /** What the service answered, as problem details (RFC 9457). */
  constructor(status, body) {
    super(body.detail || body.title || `The service answered ${status}.`);
    this.status = status;
    this.body = body;
    this.places = Array.isArray(body.places) ? body.places : [];
  }
}

export class Unreachable extends Error {}

export const keepToken = (token) => sessionStorage.setItem(KEY, token);
export const forgetToken = () => sessionStorage.removeItem(KEY);
export const hasToken = () => sessionStorage.getItem(KEY) !== null;

async function request(method, path, { body, signal, accept = "application/json" } = {}) {
  const headers = { Accept: accept };
  const token = sessionStorage.getItem(KEY);
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, ROOT), { method, headers, signal, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable("The service does not answer.");
  }
  if (response.ok) return response;
  throw new Problem(response.status, await response.json().catch(() => ({})));
}

export async function call(method, path, options) {
  const response = await request(method, path, options);
  const text = await response.text().catch(() => {
    throw new Unreachable("The connection broke.");
  });
  return text ? JSON.parse(text) : null;
}

/** A file of the service, as what the browser saves under a name; an address alone would not send the token. */
export async function download(path, name) {
  const response = await request("GET", path, { accept: "*/*" });
  const address = URL.createObjectURL(await response.blob());
  const link = Object.assign(document.createElement("a"), { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

export const get = (path, options) => call("GET", path, options);
export const queryPath = (name, rest = "") => `queries/${encodeURIComponent(name)}${rest}`;

/** An open stream of events: `{event, data}`, and `{event: "heartbeat"}` for comments. */
export async function subscribe(path, signal) {
  const response = await request("GET", path, { signal, accept: "text/event-stream" });
  return parsed(response.body.pipeThrough(new TextDecoderStream()).getReader());
}

async function* parsed(reader) {
  let rest = "";
  for (;;) {
    let piece;
    try {
      piece = await reader.read();
    } catch {
      throw new Unreachable("The connection broke.");
    }
    if (piece.done) return;
    const blocks = (rest + piece.value).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) yield event(block);
  }
}

function event(block) {
  let name = "heartbeat";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
  return { event: data.length && name === "heartbeat" ? "message" : name, data: data.length ? JSON.parse(data.join("\n")) : null };
}
