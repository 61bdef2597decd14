// What happens at the node, as it happens. What is not known to be current is never shown as if it were.
import { Refused, events, get, request, session } from "/console/api.js";
import { put } from "/console/dom.js";

const SILENCE_MS = 12000; // the node gives a sign of life more often
const RETRY_MS = [500, 1000, 2000, 5000];

const listeners = { status: [], approval: [], records: [], open: [] };
/** `what`: status, approval, records, or open: (again) connected, and what was missed has to be asked for. */
export const on = (what, listener) => listeners[what].push(listener);

let stream, silence, retry, tries = 0, since = null;
const waiting = new Map();

const tell = (what, value) => { for (const one of listeners[what]) one(value); };

function show(state) {
  const live = document.getElementById("live");
  document.body.classList.toggle("stale", state !== "live");
  if (!live || live.dataset.state === state) return;
  live.dataset.state = state;
  put(live, state === "out" ? "" : state === "live" ? "Live" : since === null ? "Connecting…" : "Reconnecting… as of " + since.toLocaleTimeString([], { hour12: false }));
}

/** Everywhere, as long as it is so: the configuration lets everyone act in a room. */
function warn(topics) {
  const shown = document.getElementById("open-rooms");
  if (topics.length === 0) return void shown?.remove();
  const banner = shown ?? document.createElement("p");
  banner.id = "open-rooms";
  banner.className = "error banner";
  banner.setAttribute("role", "alert");
  const said = (topics.length === 1 ? "The room " + topics[0] + " is open" : "These rooms are open: " + topics.join(", ")) + ". Everyone who may join acts there without asking.";
  if (banner.textContent !== said) put(banner, said);
  if (!shown) document.getElementById("content").prepend(banner);
}

function badge() {
  const count = document.getElementById("waiting");
  if (!count) return;
  const number = waiting.size;
  count.hidden = number === 0;
  put(count, number > 99 ? "99+" : String(number));
  count.setAttribute("aria-label", number + " waiting");
}

function listen() {
  clearTimeout(silence);
  silence = setTimeout(lost, SILENCE_MS);
}

async function lost() {
  clearTimeout(silence);
  clearTimeout(retry);
  stream?.abort();
  show("waiting");
  retry = setTimeout(async () => {
    try {
      await get("/session"); // tells a node that is away from one that no longer knows this browser
    } catch (error) {
      if (error instanceof Refused && error.status === 401) return void show("out");
      return void lost();
    }
    open();
  }, RETRY_MS[Math.min(tries++, RETRY_MS.length - 1)]);
}

async function open() {
  stream?.abort();
  const own = stream = new AbortController();
  let begun = false;
  const take = (said) => {
    since = new Date();
    tries = 0;
    listen();
    show("live");
    if (!begun) {
      begun = true;
      waiting.clear();
      tell("open");
    }
    if (said.status) {
      put(document.getElementById("node"), said.status.node.name);
      warn(said.status.open_rooms);
      tell("status", said.status);
    }
    if (said.approval) {
      if (said.approval.status === "pending") waiting.set(said.approval.id, true);
      else waiting.delete(said.approval.id);
      tell("approval", said.approval);
    }
    if (said.records) tell("records", said.records);
    badge();
  };
  listen();
  try { // an EventSource could not send the key of the session
    for await (const data of events(await request("GET", "/admin/events", undefined, { signal: own.signal }))) take(JSON.parse(data));
  } catch {
    // it ended, and is begun anew
  }
  if (!own.signal.aborted) lost();
}

/** Begins; `session` first, so that a stranger is told how to log in. */
export async function start() {
  show("waiting");
  try {
    await session();
  } catch (error) {
    if (error.status === 401) return void show("out");
  }
  open();
  document.addEventListener("visibilitychange", () => { if (!document.hidden && stream?.signal.aborted) open(); });
  addEventListener("offline", lost);
  addEventListener("pagehide", () => stream?.abort());
}
