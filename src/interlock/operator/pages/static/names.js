// The registry of tool surface names: found by words, what is late, one entry with its revisions and its record.
import { failure, get, may, post } from "/console/api.js";
import { code, count, empty, facts, h, line, main, pill, put, when } from "/console/dom.js";
import { on, start } from "/console/live.js";

const SHOWN = 200;
const moods = { Active: "good", Provisional: "info", Deprecated: "warn", Withdrawn: "" };
const waiting = new Map(); // requests that an expert decides in the inbox, by their approvals
const requests = h("div", { class: "live-data" });
const list = h("ul", { class: "rows live-data" });
const told = h("div");
const entry = h("div", { id: "name" });
const words = h("input", { type: "search", value: new URLSearchParams(location.search).get("q") || "", placeholder: "acme_search …", oninput: () => search() });
const status = h("select", { onchange: () => search() }, h("option", { value: "" }, "any"), Object.keys(moods).map((one) => h("option", { value: one }, one)));
let asked = 0, isAdmin = false;

const chosen = () => new URLSearchParams(location.search).get("name");
const href = (name) => "/names?" + new URLSearchParams({ ...(words.value ? { q: words.value } : {}), name });

function drawWaiting() {
  const all = [...waiting.values()];
  put(requests, all.length > 0 && [h("h2", null, "Waiting for an expert"), h("ul", { class: "rows" }, all.map((one) => h("li", null,
    h("a", { class: "row", href: "/approvals/" + encodeURIComponent(one.id) }, pill("request", "pending"), h("span", { class: "name" }, line(one.name)),
      h("span", { class: "sub" }, line(one.requested_by), one.reason ? " · " + line(one.reason) : "")))))]);
}

function marks(one) {
  return [one.is_overdue && pill("review overdue", "bad"), one.is_unconfirmed && pill("public, to be confirmed", "warn"), one.origin.endsWith(", initial contents") && pill("initial contents", ""), one.source && pill(one.is_trusted ? "imported" : "imported, not trusted", "")];
}

function row(one) {
  const go = (event) => { if (!event.metaKey && !event.ctrlKey) { event.preventDefault(); history.pushState(null, "", href(one.surface_name)); show(); } };
  return h("li", null, h("a", { class: "row two", href: href(one.surface_name), onclick: go }, h("span", { class: "name" }, line(one.surface_name)),
    h("span", null, pill(one.status, moods[one.status]), " ", marks(one)),
    h("span", { class: "sub" }, [line(one.change_controller), line(one.authentication_scope), "since " + one.first_registered, one.servers.length ? "offered by " + line(one.servers.join(", ")) : ""].filter(Boolean).join(" · "))));
}

async function search() {
  const turn = ++asked;
  try {
    const wanted = { ...(words.value.trim() ? { search: words.value.trim() } : {}), ...(status.value ? { status: status.value } : {}), limit: String(SHOWN) };
    const found = await get("/admin/names?" + new URLSearchParams(wanted));
    if (turn !== asked) return;
    put(list, found.names.map(row));
    list.hidden = found.names.length === 0;
    put(told, found.trouble && h("p", { class: "error", role: "alert" }, "The registry cannot be used: " + line(found.trouble)),
      found.overdue > 0 && h("p", { class: "error", role: "alert" }, count(found.overdue, "review is", "reviews are") + " overdue."),
      found.unconfirmed > 0 && h("p", { class: "told" }, count(found.unconfirmed, "public name is", "public names are") + " to be confirmed."),
      found.compared.map((each) => h("p", { class: "hint" }, "Compared with " + line(each.source) + ", entries that differ: " + each.differing.toLocaleString("en") + " of " + each.entries.toLocaleString("en") + ".")),
      found.names.length === 0 ? empty("No name fits", h("p", null, "Ask for one: ", code("interlock names request NAME --from request.json"), "."))
        : h("p", { class: "hint" }, found.matching > SHOWN ? "The first " + SHOWN + " of " + found.matching.toLocaleString("en") + "; search for others." : count(found.matching, "name")));
  } catch (error) {
    if (error.status !== 401) put(told, failure(error));
  }
}

function confirmed(name) {
  const said = h("span", { role: "status" });
  return h("p", null, h("button", { type: "button", onclick: async () => {
    try { await post("/admin/names/actions", { action: "confirm-public", subject: name }); await Promise.all([search(), show()]); } catch (error) { put(said, error.message); }
  } }, "Confirm that it is public"), " ", said);
}

const revision = (one) => h("li", null, h("strong", null, "Revision " + one.revision), " of " + one.registered + (one.is_breaking ? ", breaking" : ""), ": ", line(one.specification_reference), ", ", line(one.authentication_scope),
  h("p", { class: "hint" }, "arguments ", code(one.argument_digest || "not known"), " · results ", code(one.return_digest || "not known"), one.document_digest && [" · document ", code(one.document_digest)]));

const step = (one) => h("li", null, when(one.at), " ", h("strong", null, line(one.what)), " by ", line(one.by), one.is_override ? ", in the controller's place" : "", one.reason ? ": " + line(one.reason) : "");

async function show() {
  const name = chosen();
  if (name === null) return void put(entry);
  try {
    const found = await get("/admin/names/entries/" + encodeURIComponent(name) + "?log=yes");
    if (name !== chosen()) return;
    const one = found.entry;
    put(entry, h("section", { class: "box" }, h("h2", null, code(line(name))),
      one === null ? h("p", null, "There is no entry of this name.") : [
        facts([["Status", [pill(one.status, moods[one.status]), one.overdue && [" ", pill("review overdue", "bad")]]], ["Controller", line(one.change_controller)], ["Scope", line(one.authentication_scope)],
          ["Prefix", line(one.vendor_prefix)], ["Specification", line(one.specification_reference)], ["First registered", one.first_registered], ["Review due", one.answer_due || one.review_due],
          ["Deprecated on", one.deprecated_on], ["Successor", one.successor && line(one.successor)], ["Withdrawn on", one.withdrawn_on], ["Confirmed public", one.public_confirmed_on],
          ["Comes from", line(found.origin)], ["Reviewed by a party", one.self_reviewed ? "yes" : ""]]),
        isAdmin && one.authentication_scope === "public" && !one.source && confirmed(name),
        h("h3", null, "Revisions"), h("ul", null, [one.specification, ...(one.earlier_specifications || []).toReversed()].map(revision))],
      found.comparisons.map((each) => [h("h3", null, "Compared with " + line(each.source)), each.differences.length > 0 ? h("ul", null, each.differences.map((text) => h("li", null, line(text)))) : h("p", null, "No difference.")]),
      found.requests.length > 0 && [h("h3", null, "Requests"), h("ul", null, found.requests.map((each) => h("li", null, each.filed_on + " " + line(each.kind) + " " + line(each.state) + (each.reason ? ": " + line(each.reason) : ""))))],
      found.implementations.length > 0 && [h("h3", null, "Implementations"), h("ul", null, found.implementations.map((each) => h("li", null, line(each.who) + (each.ended_on ? ", ended on " + each.ended_on : ""))))],
      h("h3", null, "Record"), h("ul", null, found.log.map(step))));
  } catch (error) {
    if (error.status !== 401) put(entry, failure(error));
  }
}

async function again() {
  waiting.clear(); // the stream tells what waits, and then what changes
  drawWaiting();
  isAdmin = await may("admin").catch(() => false);
  await Promise.all([search(), show()]);
}

put(main(), h("h1", null, "Names"), h("p", { class: "lead" }, "What the names of tools mean, who may change that, and since when."), requests,
  h("div", { class: "bar" }, h("label", null, "Search", words), h("label", { class: "fixed" }, "Status", status)), told, entry, list);
addEventListener("popstate", show);
on("open", again);
on("approval", (one) => {
  if (one.kind !== "request" || !one.tool.startsWith("names.")) return;
  const isNew = one.status !== "pending" && waiting.delete(one.id);
  if (one.status === "pending") waiting.set(one.id, one);
  drawWaiting();
  if (isNew) search().then(show);
});
start();
