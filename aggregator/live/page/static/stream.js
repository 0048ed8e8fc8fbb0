// Hear what changes: one stream of events for a browser, however many pages of it are open.
//
// The page that holds the lock reads the stream and passes everything on; when it goes, another gets the lock and
// resumes behind the last event. A stream that says nothing for SILENT milliseconds, not even a comment, is lost.

const ADDRESS = "/api/v1/events";
const SILENT = 40_000;
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 10_000;

const listeners = new Set();
const channel = "BroadcastChannel" in self ? new BroadcastChannel("muster-events") : null;
const state = { connected: null, since: Date.now(), lastId: null };
let pausedUntil = null;
let reads = false;

/** Call `heard({kind, data})` for each event; `connected` and `lost` are kinds of ours. */
export function listen(heard) {
  listeners.add(heard);
  return () => listeners.delete(heard);
}

export const connection = () => ({ ...state });

/** Try at once: the reader asks for it, or the network is back. */
export function hurry() {
  pausedUntil?.();
  channel?.postMessage({ kind: "hurry" });
}

function take(message) {
  if (message.kind === "connected" || message.kind === "lost") {
    const connected = message.kind === "connected";
    if (state.connected === connected && !message.again) return;
    state.connected = connected;
    state.since = message.at;
  }
  if (message.id) state.lastId = message.id;
  for (const heard of listeners) heard(message);
}

function tell(message) {
  take(message);
  channel?.postMessage(message);
}

async function read(response, alive) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    alive();
    const lines = (rest + value).split(/\r\n|\n|\r/);
    rest = lines.pop();
    for (const line of lines) field(line);
  }
}

let event = { kind: "message", data: [], id: null };

function field(line) {
  if (line === "") {
    if (event.data.length) tell({ kind: event.kind, id: event.id, data: JSON.parse(event.data.join("\n")) });
    event = { kind: "message", data: [], id: null };
    return;
  }
  const at = line.indexOf(":");
  if (at === 0) return;
  const name = at < 0 ? line : line.slice(0, at);
  const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
  if (name === "event") event.kind = value;
  else if (name === "data") event.data.push(value);
  else if (name === "id") event.id = value;
}

async function once() {
  const control = new AbortController();
  let timer = setTimeout(() => control.abort(), SILENT);
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => control.abort(), SILENT);
  };
  try {
    const headers = { Accept: "text/event-stream", ...(state.lastId ? { "Last-Event-ID": state.lastId } : {}) };
    const response = await fetch(ADDRESS, { headers, signal: control.signal, cache: "no-store" });
    if (!response.ok || !response.body) return;
    event = { kind: "message", data: [], id: null };
    tell({ kind: "connected", at: Date.now() });
    await read(response, alive);
  } catch {
    // A stream that breaks, or never began, is the ordinary way to learn that the service is away.
  } finally {
    clearTimeout(timer);
  }
}

async function lead() {
  reads = true;
  let pause = FIRST_PAUSE;
  for (;;) {
    const began = Date.now();
    await once();
    tell({ kind: "lost", at: Date.now() });
    if (Date.now() - began > 5000) pause = FIRST_PAUSE;
    await new Promise((resolve) => {
      pausedUntil = resolve;
      setTimeout(resolve, pause * (0.7 + 0.6 * Math.random()));
    });
    pause = Math.min(pause * 2, LONGEST_PAUSE);
  }
}

channel?.addEventListener("message", ({ data }) => {
  if (data.kind === "hurry") pausedUntil?.();
  else if (data.kind === "how") {
    // Only who reads the stream knows: a page that has just been opened would call it lost for all.
    if (reads && state.connected !== null) channel.postMessage({ kind: state.connected ? "connected" : "lost", at: state.since, id: state.lastId });
  } else take(data);
});
addEventListener("online", hurry);

export function begin() {
  if (channel && navigator.locks) {
    // Ask who reads already how it goes: it says so only when that changes.
    channel.postMessage({ kind: "how" });
    navigator.locks.request("muster-events", lead);
  } else lead();
}
