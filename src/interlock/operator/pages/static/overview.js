// The node at a glance: how it stands, what waits for a person, the tree with its reasons, what happened last.
import { failure, get } from "/console/api.js";
import { ago, asked, code, copy, count, countdown, empty, h, line, main, mood, needsAttention, pill, put } from "/console/dom.js";
import { on, start } from "/console/live.js";
import { row } from "/console/records.js";

const RECENT = 8, WAITING = 5;
const waiting = new Map();
const place = {};

function drawWaiting() {
  const all = [...waiting.values()].sort((a, b) => a.created_at.localeCompare(b.created_at));
  put(place.waiting, all.length === 0
    ? empty("Nothing waits for you", h("p", null, "A call whose effect cannot be undone, and a tool of which nobody has said what it does, is held here until a person decides."))
    : [h("ul", { class: "rows" }, all.slice(0, WAITING).map((one) => h("li", null,
        h("a", { class: "row", href: "/approvals/" + encodeURIComponent(one.id) },
          pill(asked(one), "pending"), h("span", { class: "name" }, line(one.name)),
          one.countdown,
          h("span", { class: "sub" }, one.requested_by, one.reason ? " · " + one.reason : ""))))),
      all.length > WAITING && h("p", null, h("a", { href: "/approvals" }, "All " + all.length + " in the inbox"))]);
}

const stat = (number, text, href) => h("li", null,
  h(href ? "a" : "div", { href }, h("b", null, number.toLocaleString("en")), h("span", null, text)));

function health(status) {
  const bad = status.links.filter((one) => needsAttention(one.state));
  const total = status.links.length;
  if (status.node.audit_trouble) return h("p", { class: "error", role: "alert" }, "The audit log cannot be written: " + status.node.audit_trouble);
  if (status.node.store_trouble) return h("p", { class: "error", role: "alert" }, status.node.store_trouble + ". What needs it is refused.");
  if (status.configuration?.problem) return h("p", { class: "error", role: "alert" }, "The newest configuration is not in effect: " + status.configuration.problem);
  if (total === 0) return h("p", { class: "lead" }, "The node runs, and has no servers yet.");
  return h("p", { class: "lead" }, bad.length === 0
    ? (total === 1 ? "The one server is ready." : "All " + total + " servers are ready.")
    : count(bad.length, "server needs", "servers need") + " attention: " + bad.map((one) => one.segment).join(", ") + ".");
}

function leaf(name, state, details, why, below) {
  return h("li", null, h("div", { class: "leaf" }, h("b", null, name), state && pill(state, mood(state)),
    details && h("span", { class: "muted" }, details), why && h("span", { class: "why" }, why)), below && below.length > 0 && h("ul", null, below));
}

function linkLeaf(link) {
  const details = [count(link.contracts ?? link.tools, "tool"), link.calls ? count(link.calls, "call") : "", link.errors ? link.errors + " failed" : "",
    link.latency_ms ? Math.round(link.latency_ms) + " ms" : ""].filter(Boolean).join(" · ");
  const nested = (path) => link.below.filter((one) => one.path.length === path.length + 1 && path.every((part, at) => one.path[at] === part))
    .map((one) => leaf(one.path.at(-1), one.degraded ? "degraded" : null,
      [count(one.tools, "tool"), one.gated ? one.gated + " held further down" : ""].filter(Boolean).join(" · "), null, nested(one.path)));
  return leaf(h("a", { href: "/servers?server=" + encodeURIComponent(link.segment) }, link.segment), link.state, details, link.reason, nested([]));
}

function tree(status) {
  const above = status.parents.map((one) => leaf(one.url, one.state === "registered" ? "ready" : one.state, "parent" + (one.not_listed ? " · does not list " + count(one.not_listed, "tool") : ""), one.reason));
  const links = status.links.map(linkLeaf);
  const here = leaf(status.node.name, null, "this node · started " + ago(status.node.started_at), null, links);
  if (links.length === 0) {
    here.append(empty("No servers yet", h("p", null, "Add one: ", code("interlock add npm:@modelcontextprotocol/server-everything"), ". Or take those that another client has: ", code("interlock import"), ".")));
  }
  return h("ul", { class: "tree" }, above, here);
}

function withheld(status) {
  const groups = new Map();
  for (const link of status.links) {
    for (const one of link.withheld) {
      const key = link.segment + "\n" + one.reason;
      if (!groups.has(key)) groups.set(key, { segment: link.segment, reason: one.reason, names: [] });
      groups.get(key).names.push(one.name);
    }
  }
  const rows = [...groups.values()].map((one) => unlisted(one.names.length, "warn", one.segment, one.reason + ": " + one.names.slice(0, 12).join(", ") + (one.names.length > 12 ? ", …" : "")));
  const reasons = (of) => Object.entries(of.not_listed_because || {}); // numbers alone: the names are not told
  for (const link of status.links) rows.push(...reasons(link).map(([why, tools]) => unlisted(tools, null, link.segment, "not offered here: " + why)));
  for (const parent of status.parents) rows.push(...reasons(parent).map(([why, tools]) => unlisted(tools, "warn", parent.url, why)));
  return rows.length > 0 && [h("h2", null, "Not listed"), h("ul", { class: "rows" }, rows)];
}

const unlisted = (tools, mark, where, why) => h("li", null, h("div", { class: "row" }, pill(count(tools, "tool"), mark), h("span", { class: "name" }, line(where)), h("span", { class: "sub" }, line(why))));

function drawStatus(status) {
  put(place.health, health(status));
  put(place.stats,
    stat(status.approvals.waiting, "waiting for you", "/approvals"), stat(status.catalog.tools, "tools", "/tools"),
    stat(status.gate.tools, "held by the gate", "/tools"), stat(status.calls.total, "calls so far", "/activity"),
    stat(status.calls.in_flight, "under way"), stat(status.clients.sessions + status.clients.streams, "clients connected", "/access"),
    status.safety.blocked > 0 && stat(status.safety.blocked, "blocked agents", "/agents"));
  const warn = status.gate.without_approver > 0 && h("p", { class: "told" }, "Calls of ", count(status.gate.without_approver, "held tool"),
    " can be approved by no one yet. ", h("a", { href: "/approvers" }, "Become the first approver"), ".");
  const open = status.gate.unclassified > 0 && h("p", { class: "told" }, count(status.gate.unclassified, "tool has", "tools have"), " no class yet, and calls wait. ", h("a", { href: "/classification" }, "Classify all at once"), ".");
  const late = status.names.overdue > 0 && h("p", { class: "told" }, count(status.names.overdue, "review of a registered name is", "reviews of registered names are"), " overdue. ", h("a", { href: "/names" }, "Look at names"), ".");
  const unconfirmed = status.names.unconfirmed > 0 && h("p", { class: "told" }, count(status.names.unconfirmed, "public name is", "public names are"), " to be confirmed. ", h("a", { href: "/names" }, "Look at names"), ".");
  put(place.tree, warn, open, late, unconfirmed, tree(status), withheld(status));
  put(place.connect, h("h2", null, "Connect a client"), h("p", null, code(status.node.mcp_url), " ", copy(status.node.mcp_url)),
    h("p", { class: "muted" }, "MCP over HTTP; over stdio: ", code("interlock serve --stdio"), "."));
}

function drawRecent(records, isFirst) {
  if (isFirst) put(place.recent);
  for (const one of records) place.recent.prepend(row(one));
  while (place.recent.children.length > RECENT) place.recent.lastChild.remove();
  place.quiet.hidden = place.recent.children.length > 0;
  place.recent.hidden = !place.quiet.hidden;
}

async function again() {
  waiting.clear(); // the stream tells what waits, and then what changes
  drawWaiting();
  try {
    const { last } = await get("/admin/audit?after=9007199254740991&limit=1");
    drawRecent((await get("/admin/audit?after=" + Math.max(0, last - RECENT) + "&limit=" + RECENT)).records, true);
  } catch (error) {
    if (error.status !== 401) put(place.waiting, failure(error));
  }
}

for (const name of ["health", "waiting", "tree", "connect"]) place[name] = h("div", { class: "live-data" });
place.stats = h("ul", { class: "stats live-data" });
place.recent = h("ul", { class: "rows live-data", hidden: true });
place.quiet = empty("Nothing has happened yet", h("p", null, "Connect a client, or call a tool on the page ", h("a", { href: "/tools" }, "Tools"), "."));
put(main(), h("h1", null, "Overview"), place.health, place.stats, h("h2", null, "Waiting for you"), place.waiting,
  h("h2", null, "The tree"), place.tree, h("h2", null, "Recent activity"), place.quiet, place.recent, place.connect);
on("open", again);
on("status", drawStatus);
on("approval", (one) => { if (one.status === "pending") waiting.set(one.id, { ...one, countdown: countdown(one) }); else waiting.delete(one.id); drawWaiting(); });
on("records", (records) => drawRecent(records, false));
start();
