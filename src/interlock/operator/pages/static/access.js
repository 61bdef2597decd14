// Access: who is connected, the tokens that are taken, and whose keys may approve. To look at; commands change it.
import { failure, get, request, session } from "/console/api.js";
import { ago, code, empty, h, line, main, pill, put } from "/console/dom.js";
import { on, start } from "/console/live.js";

const clients = h("div", { class: "live-data" });
const tokens = h("div", { class: "live-data" });
const anchors = h("div", { class: "live-data" });

async function again() {
  try {
    const [held, found] = await Promise.all([get("/admin/tokens"), get("/admin/approvers")]);
    put(tokens, held.tokens.length === 0 ? empty("No tokens", h("p", null, "A client on another machine needs one: ", code("interlock access token --for client --name NAME"), "."))
      : h("ul", { class: "rows" }, held.tokens.map((one) => h("li", null, h("div", { class: "row" }, pill(one.door, one.door === "operator" ? "warn" : "info"), h("span", { class: "name" }, line(one.name)),
        h("span", { class: "end" }, one.scope), h("span", { class: "sub" }, ["made " + ago(one.created_at), one.expires_at ? "ends " + new Date(one.expires_at).toLocaleString() : "", one.last_used_at ? "used " + ago(one.last_used_at) : "never used", "id " + one.id].filter(Boolean).join(" · ")))))));
    const known = found.approvers;
    put(anchors, h("p", null, h("a", { href: "/approvers" }, found.needs_first ? "Become the first approver" : "Add a passkey")),
      known.length === 0 ? empty("No one can approve yet", h("p", null, "The first approver takes the setup code that the terminal of the node shows."))
      : h("ul", { class: "rows" }, known.map((one) => h("li", null, h("div", { class: "row" }, pill(one.kind, one.approves.length ? "good" : "warn"), h("span", { class: "name" }, line(one.name)),
        h("span", { class: "sub" }, one.approves.length ? "approves " + one.approves.map(line).join(", ") : "not enrolled: it waits in the inbox"))))));
  } catch (error) {
    if (error.status !== 401) put(tokens, failure(error));
  }
}

function draw(status) {
  const known = Object.entries(status.clients.surfaces);
  put(clients, known.length === 0 ? empty("No client is connected", h("p", null, "Point one at ", code(status.node.mcp_url), ", or over stdio at ", code("interlock serve --stdio"), "."))
    : h("ul", { class: "rows" }, known.map(([name, number]) => h("li", null, h("div", { class: "row" }, pill(String(number), "info"), h("span", { class: "name" }, line(name)))))));
}

const mine = h("p");
async function drawMine() {
  const { principal, key } = await session();
  put(mine, "You are ", code(principal), ". ", key && h("button", { type: "button", onclick: async () => { await request("DELETE", "/session"); location.reload(); } }, "Log out"));
}

put(main(), h("h1", null, "Access"), h("p", { class: "lead" }, "Read-only here. ", code("interlock access --help"), " lists the commands that change it."),
  mine, h("h2", null, "Connected clients"), clients, h("h2", null, "Tokens and sessions"), tokens, h("h2", null, "Who may approve"), anchors);
on("open", () => { again(); drawMine().catch(() => {}); });
on("status", draw);
start();
