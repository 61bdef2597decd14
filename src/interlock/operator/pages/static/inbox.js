// The inbox: what waits for a decision, and what was decided. One opens on a page of its own.
import { failure, get } from "/console/api.js";
import { ago, asked, countdown, empty, h, keys, line, main, pill, put } from "/console/dom.js";
import { on, start } from "/console/live.js";

const found = new Map();
let shows = "pending", chosen = 0;

const list = h("ul", { class: "rows live-data" });
const told = h("div");
const CLASSES = { pending: "pending", approved: "approved", done: "done", used: "info" };

const rows = () => [...list.querySelectorAll("a.row")];
function choose(step) {
  const all = rows();
  if (all.length === 0) return;
  chosen = Math.max(0, Math.min(all.length - 1, document.activeElement?.matches("a.row") ? all.indexOf(document.activeElement) + step : chosen));
  all[chosen].focus();
}

function row(one) {
  const end = one.status === "pending" ? one.countdown : h("span", { class: "end" }, ago(one.decision?.at || one.created_at));
  return h("li", null, h("a", { class: "row", href: "/approvals/" + encodeURIComponent(one.id) },
    pill(one.status === "pending" ? asked(one) : one.status, CLASSES[one.status] || "bad"),
    h("span", { class: "name" }, line(one.name)), end,
    h("span", { class: "sub" }, "asked by " + one.requested_by, one.agent ? " (" + one.agent + ")" : "", one.reason ? " · " + one.reason : "",
      one.decision ? " · " + one.decision.what + " by " + one.decision.by : "")));
}

function draw() {
  const shown = [...found.values()].filter((one) => shows === "all" || one.status === "pending")
    .sort((a, b) => (shows === "all" ? b.created_at.localeCompare(a.created_at) : a.created_at.localeCompare(b.created_at)));
  const at = rows().indexOf(document.activeElement);
  put(list, shown.map(row));
  if (at >= 0) rows()[Math.min(at, shown.length - 1)]?.focus();
  list.hidden = shown.length === 0;
  const pending = [...found.values()].filter((one) => one.status === "pending").length;
  document.title = (pending > 0 ? "(" + pending + ") " : "") + "Inbox · Interlock";
  put(told, shown.length > 0 ? null : shows === "all"
    ? empty("Nothing was ever held here", h("p", null, "What is decided stays listed for a while."))
    : empty("Nothing waits for you", h("p", null, "When an agent calls a tool whose effect cannot be undone, the call is held and appears here. ",
      "So does a tool of which nobody has said what it does. To try it, call one on the page ", h("a", { href: "/tools" }, "Tools"), ".")));
}

const take = (one) => found.set(one.id, { ...one, countdown: countdown(one) });

const news = new Map(); // what changed while the list was on its way: it may be older
let asking = 0;

async function again() {
  asking++;
  try {
    const listed = await get("/approvals?status=" + shows);
    found.clear();
    listed.approvals.forEach(take);
    news.forEach(take);
    draw();
  } catch (error) {
    if (error.status !== 401) put(told, failure(error));
  } finally {
    if (--asking === 0) news.clear();
  }
}

const choice = (name, text) => h("button", { type: "button", "aria-pressed": String(name === shows), onclick: (event) => {
  shows = name;
  for (const one of event.target.parentElement.children) one.setAttribute("aria-pressed", String(one === event.target));
  again();
} }, text);

put(main(), h("h1", null, "Inbox"), h("p", { class: "lead" }, "What agents may not do alone. Open one to read exactly what would happen."),
  h("div", { class: "bar" }, h("div", { class: "segments fixed", role: "group", "aria-label": "Which" }, choice("pending", "Waiting"), choice("all", "Everything")), h("a", { class: "button fixed", href: "/grants" }, "Standing grants")),
  told, list, h("p", { class: "hint" }, h("kbd", null, "j"), " ", h("kbd", null, "k"), " move, ", h("kbd", null, "Enter"), " opens; on its page ",
    h("kbd", null, "a"), " goes to Approve, ", h("kbd", null, "d"), " to Deny, ", h("kbd", null, "u"), " comes back."));
keys({ j: () => choose(1), k: () => choose(-1), ArrowDown: () => choose(1), ArrowUp: () => choose(-1) });
on("open", again);
on("approval", (one) => { if (asking > 0) news.set(one.id, one); take(one); draw(); });
start();
