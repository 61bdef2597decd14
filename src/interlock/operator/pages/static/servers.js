// Servers, subservers and drivers below the node: how each one stands and why, its last words, and a fresh start.
import { events, failure, get, may, post, request } from "/console/api.js";
import { ago, code, count, empty, facts, h, line, main, mood, pill, put, when } from "/console/dom.js";
import { on, start } from "/console/live.js";

const list = h("ul", { class: "rows live-data" });
const told = h("div");
const asked = new URLSearchParams(location.search).get("server");
const open = new Set(asked ? [asked] : []);
let isAdmin = false;

/** Lines that repeat are one, with their number. */
function grouped(lines) {
  const found = [];
  for (const one of lines) {
    const text = line(one.text).slice(0, 2000);
    if (found.length && found.at(-1).text === text) found.at(-1).times++;
    else found.push({ text, times: 1 });
  }
  return found.map((one) => (one.times > 1 ? one.text + "  (" + one.times + " times)" : one.text));
}

async function logs(segment, place) {
  try {
    const { lines } = await get("/admin/links/" + encodeURIComponent(segment) + "/logs?lines=40");
    put(place, h("h2", null, "Last lines of stderr"), lines.length
      ? h("pre", { tabindex: "0", role: "region", "aria-label": "Last lines of stderr" }, grouped(lines).join("\n"))
      : h("p", { class: "muted" }, "It has written nothing."));
  } catch (error) {
    put(place, failure(error));
  }
}

function restart(segment) {
  const said = h("span", { role: "status", class: "muted" });
  const button = h("button", { type: "button", onclick: async () => {
    if (button.dataset.sure !== "yes") {
      button.dataset.sure = "yes";
      put(button, "Restart: calls under way end");
      return;
    }
    button.disabled = true;
    try {
      await post("/admin/links/" + encodeURIComponent(segment) + "/restart");
      put(said, "It is started afresh.");
    } catch (error) {
      put(said, error.message);
    }
    button.disabled = false;
    delete button.dataset.sure;
    put(button, "Restart");
  } }, "Restart");
  return [button, said];
}

function authorize(segment) {
  const said = h("span", { role: "status" });
  return [h("button", { type: "button", onclick: async () => {
    try {
      const { url, issuer } = await post("/admin/links/" + encodeURIComponent(segment) + "/authorize");
      const there = /^https?:/.test(url) ? h("a", { href: url, target: "_blank", rel: "noopener noreferrer" }, "Go to " + issuer) : code(url);
      put(said, there);
    } catch (error) { put(said, error.message); }
  } }, "Log in to this server"), said];
}

function details(link) {
  const last = h("div");
  const buttons = isAdmin && h("p", { class: "buttons" }, link.consent && authorize(link.segment), restart(link.segment));
  const made = h("div", { class: "inside" },
    facts([["State", link.state + (link.reason ? ": " + line(link.reason) : link.state === "asleep" ? ": it was idle, and the next call starts it" : "")], ["Since", when(link.since)], ["Server", link.server && line(link.server.name + " " + link.server.version)],
      ["Driver", link.driver], ["Kind", link.kind + ", " + link.transport + (link.era ? ", " + link.era : "")], ["Calls", count(link.calls, "call") + ", " + link.errors + " failed" + (link.in_flight ? ", " + link.in_flight + " under way" : "")],
      ["Median", link.latency_ms ? link.latency_ms + " ms" : ""], ["Restarts", link.restarts ? String(link.restarts) : ""], ["Process", link.pid ? String(link.pid) : ""],
      ["Sandbox", link.sandbox === null ? "" : link.sandbox ? "yes" : "no"], ["Registered by", link.registration?.principal],
      ["Device", link.device && ["profile " + link.device.profile, link.device.seen ? [", last seen ", when(link.device.seen)] : ", never seen", link.device.unplugged ? ", gone " + count(link.device.unplugged, "time") : ""]],
      ["Messages", link.device && link.device.sent + " sent, " + link.device.received + " received, " + link.device.retries + " repeated"],
      ["Dropped", link.device && Object.entries(link.device.discarded).map(([why, times]) => times + " " + line(why)).join(", ")],
      ["Processes of callers", link.own.length ? String(link.own.length) : ""]]),
    link.withheld.length > 0 && [h("h2", null, "Not listed"), h("ul", null, link.withheld.slice(0, 50).map((one) => h("li", null, code(line(one.name)), " ", line(one.reason))))],
    link.not_listed_because && Object.keys(link.not_listed_because).length > 0 && [h("h2", null, "Not offered here"), h("ul", null, Object.entries(link.not_listed_because).map(([why, tools]) => h("li", null, count(tools, "tool") + ": " + line(why))))],
    link.changed?.length > 0 && [h("h2", null, "Changed"), h("ul", null, link.changed.map((one) => h("li", null, code(line(one.name)), " ", line(one.note))))],
    link.noted?.length > 0 && [h("h2", null, "What the registry of names says"), h("ul", null, link.noted.map((one) => h("li", null, code(line(one.name)), " ", line(one.note))))],
    buttons, last);
  logs(link.segment, last);
  return made;
}

const unlisted = (link) => Object.values(link.not_listed_because || {}).reduce((sum, one) => sum + one, link.withheld.length);

function row(link) {
  const box = h("details", { open: open.has(link.segment), ontoggle: () => {
    if (box.open === Boolean(box.querySelector(".inside"))) return;
    if (box.open) { open.add(link.segment); box.append(details(link)); }
    else { open.delete(link.segment); box.querySelector(".inside")?.remove(); }
  } }, h("summary", { class: "row" }, pill(link.state, mood(link.state)), h("span", { class: "name" }, line(link.segment)),
    h("span", { class: "end" }, count(link.contracts ?? link.tools, "tool")),
    h("span", { class: "sub" }, [link.kind, link.transport, link.reason ? line(link.reason) : "for " + ago(link.since).replace(/ ago$/, ""), unlisted(link) ? count(unlisted(link), "tool") + " not listed" : ""].filter(Boolean).join(" · "))));
  return h("li", { "data-segment": link.segment, "data-state": link.state }, box);
}

/** A driver that is not started: nobody trusts its files yet, or they cannot be used, and why. */
const idleRow = (idle) => h("li", { "data-segment": idle.id, "data-state": idle.state }, h("div", { class: "row" }, pill(idle.state, mood("failed")),
  h("span", { class: "name" }, line(idle.id)), h("span", { class: "sub" }, idle.state === "untrusted" ? "its files wait for your trust, in the inbox" : line(idle.reason || "it cannot be used"))));

const CLASSES = ["read_only", "reversible", "irreversible"];

/** Tries a server out and returns the trial; `say` hears each step. */
async function tried(reference, say) {
  const answer = await request("POST", "/admin/drivers/trials", JSON.stringify({ reference }));
  for await (const data of events(answer)) {
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.message);
    if (event.step) say(event.step);
    if (event.trial) return event.trial;
  }
  throw new Error("the node ended its answer before the result");
}

/** The tools that a trial proposes. The person chooses their classes, and `write` gets those that they changed. */
function proposals(trial, write) {
  const choices = trial.tools.map((tool) => {
    const choice = h("select", { "aria-label": "What " + tool.tool + " is", disabled: !tool.new }, CLASSES.map((one) => h("option", null, one)));
    choice.value = tool.class;
    return choice;
  });
  return h("form", { id: "proposals", onsubmit: (event) => {
    event.preventDefault();
    const changed = trial.tools.map((tool, at) => [tool.tool, choices[at].value]).filter(([, chosen], at) => chosen !== trial.tools[at].class);
    write(Object.fromEntries(changed));
  } }, h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Proposals" }, h("table", { class: "list" },
    h("thead", null, h("tr", null, ["Tool", "It is", "Contract", "To decide"].map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", null, trial.tools.map((tool, at) => h("tr", null, h("td", null, line(tool.tool)), h("td", null, choices[at]), h("td", null, code(line(tool.contract))), h("td", null, line(tool.question || "")))))),
  ), h("p", { class: "buttons" }, h("button", { class: "go" }, "Write the driver")));
}

/** The form that adds a server: the operations of the command `add`, for packages and addresses. */
function addForm() {
  const reference = h("input", { name: "reference", required: true, maxlength: "2000", autocomplete: "off", placeholder: "npm:PACKAGE, pypi:PACKAGE, docker:IMAGE or https://..." });
  const status = h("p", { role: "status" });
  const button = h("button", { class: "go fixed" }, "Add");
  const shown = h("div");
  const write = (trial) => async (classes) => {
    try {
      put(status, "The driver is written.");
      const added = await post("/admin/drivers", { trial, classes, accept: true });
      reference.value = "";
      put(shown);
      put(status, code(line(added.key)), " was added with " + count(added.tools.length, "tool") + (added.trusted ? "." : ". It starts once its files are accepted, in the inbox."));
    } catch (error) {
      put(status, line(error.message));
    }
  };
  const form = h("form", { id: "add", onsubmit: async (event) => {
    event.preventDefault();
    button.disabled = true;
    put(shown);
    put(status, "The server is installed and started once, to list its tools.");
    try {
      const trial = await tried(reference.value.trim(), (step) => put(status, line(step)));
      put(status, "Nothing is written yet. Choose what the tools of ", code(line(trial.driver)), " are.");
      put(shown, proposals(trial, write(trial.id)));
    } catch (error) {
      put(status, line(error.message));
    }
    button.disabled = false;
  } }, h("div", { class: "bar" }, h("label", null, "Add a server", reference), button), status);
  return h("div", null, form, shown);
}

const drawn = new Map();
function draw(status) {
  const kept = status.links.map((link) => {
    const before = drawn.get(link.segment), now = JSON.stringify([link.state, link.reason, link.tools, link.contracts, link.withheld, link.changed, link.not_listed_because, link.restarts, link.consent]);
    if (before && before.now === now) return before.row; // what somebody reads stays where it is
    const made = { now, row: row(link) };
    drawn.set(link.segment, made);
    return made.row;
  });
  for (const idle of status.idle_drivers) {
    const key = "driver " + idle.id, now = JSON.stringify(idle);
    if (drawn.get(key)?.now !== now) drawn.set(key, { now, row: idleRow(idle) });
    kept.push(drawn.get(key).row);
  }
  if (kept.length !== list.children.length || kept.some((one, at) => one !== list.children[at])) put(list, kept);
  list.hidden = kept.length === 0;
  put(told, kept.length > 0 ? null : empty("No servers yet", h("p", null, "Add one: ", code("interlock add npm:@modelcontextprotocol/server-everything"), ", or take those of another client: ", code("interlock import"), ".")));
}

const adding = h("div");
put(main(), h("h1", null, "Servers"), h("p", { class: "lead" }, "Everything below this node. One that fails takes no other with it."), told, list, adding);
on("status", async (status) => {
  isAdmin = await may("admin").catch(() => false);
  if (isAdmin && !adding.hasChildNodes()) put(adding, addForm()); // once: what somebody types stays
  draw(status);
});
start();
