// Rooms: who is in each and what they may do, what they have done so far, and the proposals that wait.
import { failure, get, may, post } from "/console/api.js";
import { ago, code, count, countdown, empty, facts, h, line, main, pill, put } from "/console/dom.js";
import { on, start } from "/console/live.js";

const rooms = h("div", { class: "live-data" });
const told = h("div", { role: "status" });
const pending = new Map();
let isAdmin = false, found = [];

const share = (one) => !one.proposals ? "no proposals yet" : one.approved + " of " + one.proposals + " approved" + (one.rejected ? ", " + one.rejected + " rejected" : "");

/** What a person should know of an agent before trusting it with more. */
const record = (one) => facts([
  ["First seen", one.first_seen ? ago(one.first_seen) : "never"], ["Proposals", String(one.proposals)], ["Approved", String(one.approved)],
  ["Rejected", String(one.rejected)], ["Violations", String(one.violations)], ["Credential", one.principal],
]);

const path = (topic, one, what) => "/admin/participants/" + encodeURIComponent(one.id) + "/" + what + "?topic=" + encodeURIComponent(topic);

async function act(topic, one, what, body, said) {
  try {
    await post(path(topic, one, what), body);
    put(told, h("p", { class: "told" }, said));
  } catch (error) {
    put(told, failure(error));
  }
  await again();
}

/** Asks for a reason, which goes on record; nothing is changed without one. */
function change(topic, one, what, verb, lead) {
  const reason = h("input", { name: "reason", required: true, maxlength: "2000", pattern: ".*\\S.*", title: "why, in a few words", autocomplete: "off" });
  const dialog = h("dialog", { "aria-labelledby": "asked" }, h("form", { method: "dialog", onsubmit: async (event) => {
    event.preventDefault();
    dialog.close();
    await act(topic, one, what, { reason: reason.value.trim() }, one.id + (what === "promote" ? " is full in " : " is restricted in ") + topic);
  } }, h("h2", { id: "asked" }, verb + " ", code(one.id)), h("p", null, lead), record(one),
    h("label", null, "Reason, for the record", reason),
    h("p", { class: "buttons" }, h("button", { class: "go" }, verb), h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"))));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  reason.focus();
}

const FULL = "A full participant sends MCP messages to every other without asking. Its record in this room:";
const RESTRICTED = "A restricted participant only proposes. Its record in this room:";

function actions(topic, one) {
  const button = (text, act) => h("button", { type: "button", onclick: act }, text);
  const demote = (verb) => button(verb, () => change(topic, one, "demote", verb, RESTRICTED));
  const promote = (verb) => button(verb, () => change(topic, one, "promote", verb, FULL));
  return isAdmin && one.id !== "interlock" && h("span", { class: "sub buttons" }, one.removed_by
    ? [demote("Let in, restricted"), promote("Let in, full")]
    : [one.privilege === "full" ? demote("Demote") : promote("Promote"), button("Disconnect", () => act(topic, one, "disconnect", undefined, one.id + " was removed from " + topic))]);
}

function participant(topic, one) {
  const state = one.removed_by ? pill("removed", "bad") : pill(one.privilege, one.privilege === "full" ? "warn" : "good");
  const seen = one.removed_by ? "by " + line(one.removed_by) + ", " + ago(one.removed_at) : one.is_present ? "present" : one.last_seen ? "last seen " + ago(one.last_seen) : "";
  return h("li", null, h("div", { class: "row" }, state, h("span", { class: "name" }, line(one.id)), h("span", { class: "end" }, seen),
    h("span", { class: "sub" }, line(one.principal), " · " + share(one), one.violations ? " · " + count(one.violations, "violation") : ""),
    one.methods.length > 0 && h("span", { class: "sub" }, one.methods.map((each) => line(each.method) + ": " + share(each)).join(" · ")), actions(topic, one)));
}

function proposal(one) {
  return h("li", null, h("a", { class: "row", href: "/approvals/" + encodeURIComponent(one.id) }, pill("proposal", "pending"), h("span", { class: "name" }, one.tool), countdown(one),
    h("span", { class: "sub" }, "proposed by " + one.agent, one.reason ? " · " + one.reason : "")));
}

function room({ topic, mode, participants }) {
  const waiting = [...pending.values()].filter((one) => one.room === topic).sort((a, b) => a.created_at.localeCompare(b.created_at));
  return h("section", { "aria-label": topic }, h("h2", null, topic, " ", pill(mode, mode === "open" ? "bad" : mode === "observe" ? "warn" : "")),
    participants.length > 0 ? h("ul", { class: "rows" }, participants.map((one) => participant(topic, one)))
      : h("p", { class: "muted" }, "No one has been here. ", code("interlock access token --for room --topic " + topic + " --participant ID --name NAME"), " lets somebody in."),
    h("h3", null, "Pending proposals"), h("p", { class: "hint" }, "Everyone in the room sees them, arguments included."),
    waiting.length > 0 ? h("ul", { class: "rows" }, waiting.map(proposal)) : h("p", { class: "muted" }, "None."));
}

function draw() {
  put(rooms, found.length > 0 ? found.map(room)
    : empty("There are no rooms", h("p", null, "A room is a topic that agents, people and robots share. ", code("interlock rooms create TOPIC"), " makes one.")));
}

async function again() {
  try {
    isAdmin = await may("admin");
    const listed = (await get("/admin/rooms")).rooms;
    found = await Promise.all(listed.map(async (one) => ({ ...one, participants: (await get("/admin/rooms/" + encodeURIComponent(one.topic) + "/participants")).participants })));
    draw();
  } catch (error) {
    if (error.status !== 401) put(told, failure(error));
  }
}

let soon;
/** A room takes a moment to hear of what the inbox tells; much at once is asked for once. */
const later = () => { soon ??= setTimeout(() => { soon = undefined; again(); }, 250); };

put(main(), h("h1", null, "Rooms"), h("p", { class: "lead" }, "Who shares a topic, and who may act there without asking."), told, rooms);
on("open", () => { pending.clear(); return again(); });
on("records", (records) => { if (records.some((one) => one.via === "rooms")) later(); });
on("approval", (one) => { if (one.kind !== "proposal") return; if (one.status === "pending") pending.set(one.id, one); else pending.delete(one.id); draw(); later(); });
start();
