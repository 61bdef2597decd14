// Tools: found by words, shown in full with every check that a call meets, and called.
import { failure, get, may, post, session } from "/console/api.js";
import { code, copy, count, empty, facts, h, keys, layout, line, long, main, mood, needsAttention, pill, put } from "/console/dom.js";
import { on, start } from "/console/live.js";
import { call } from "/console/tool_call.js";
import { argumentForm } from "/console/tool_form.js";

const SHOWN = 300;
let version = null, asked = 0;
const list = h("ul", { class: "rows live-data" });
const told = h("div");
const words = h("input", { type: "search", value: new URLSearchParams(location.search).get("q") || "", placeholder: "create an issue …", oninput: () => search() });
const detail = h("div", { id: "tool" });
const split = h("div", { class: "split" });

function kind({ capability, unclassified }) {
  if (unclassified || Object.keys(capability).length === 0) return ["not classified", "info"];
  if (capability.mutable === false) return ["read_only", "good"];
  return capability.reversible === true ? ["reversible", "warn"] : ["irreversible", "bad"];
}

const gist = (text) => line(text || "").split(/(?<=[.!?])\s/)[0].slice(0, 160);
const href = (name) => "/tools?" + new URLSearchParams({ ...(words.value ? { q: words.value } : {}), tool: name });

function row(tool) {
  const name = tool.withheld ? tool.segment + "." + tool.original : tool.name;
  const [said, mark] = tool.withheld ? ["withheld", "warn"] : !needsAttention(tool.state) ? kind(tool) : [tool.state, mood(tool.state)];
  const inside = [h("span", { class: "name" }, line(name)), pill(said, mark), h("span", { class: "sub" }, tool.withheld ? line(tool.withheld) : gist(tool.description || tool.title))];
  return h("li", null, tool.withheld ? h("div", { class: "row two" }, inside)
    : h("a", { class: "row two", href: href(tool.name), onclick: (event) => { if (!event.metaKey && !event.ctrlKey) { event.preventDefault(); history.pushState(null, "", href(tool.name)); show(); } } }, inside));
}

async function search() {
  const turn = ++asked;
  try {
    const wanted = words.value.trim();
    const { tools } = await get("/admin/tools" + (wanted ? "?" + new URLSearchParams({ search: wanted }) : ""));
    if (turn !== asked) return;
    put(list, tools.slice(0, SHOWN).map(row));
    list.hidden = tools.length === 0;
    put(told, tools.length > 0 ? h("p", { class: "hint" }, tools.length > SHOWN ? "The first " + SHOWN + " of " + tools.length + "; search for others." : count(tools.length, "tool"))
      : wanted ? empty("No tool fits these words", h("p", null, "Names, descriptions and synonyms are searched."))
        : empty("No tools yet", h("p", null, "Add a server: ", code("interlock add npm:@modelcontextprotocol/server-everything"), ". Its tools appear here by themselves.")));
    mark();
  } catch (error) {
    if (error.status !== 401) put(told, failure(error));
  }
}

const chosen = () => new URLSearchParams(location.search).get("tool");

function mark() {
  for (const one of list.querySelectorAll("a.row")) {
    if (new URL(one.href).searchParams.get("tool") === chosen()) one.setAttribute("aria-current", "true");
    else one.removeAttribute("aria-current");
  }
}

function classify(name) {
  const told = h("span", { class: "wrong", role: "alert" });
  return h("p", { class: "told" }, "It is not known what this tool changes, so that its calls are held. ", h("button", { type: "button", class: "link", onclick: async () => {
    try { location.assign("/approvals/" + encodeURIComponent((await post("/admin/tools/" + encodeURIComponent(name) + "/classify")).id)); } catch (error) { put(told, error.message); }
  } }, "Say what it does"), ", or classify ", h("a", { href: "/classification" }, "all such tools at once"), ". ", told);
}

const VERDICTS = { pass: "good", refuse: "bad", hold: "warn", later: "" };

async function show() {
  const name = chosen();
  split.classList.toggle("open", name !== null);
  mark();
  if (name === null) {
    document.title = "Tools · Interlock";
    put(detail, empty("Choose a tool", h("p", null, "You see what it does, every check before it runs, and a form to call it. Calls go through the same guard as any client's.")));
    return;
  }
  try {
    const { principal } = await session();
    const tool = await get("/admin/tools/" + encodeURIComponent(name) + "?" + new URLSearchParams({ as: principal }));
    if (name !== chosen()) return;
    const [said, mood_] = kind(tool);
    const form = argumentForm(tool.definition.inputSchema);
    const answer = h("div", { "aria-live": "polite" });
    const run = () => { const text = form.json(); if (text !== null) call(tool.name, text, answer); };
    document.title = line(tool.name) + " · Interlock";
    put(detail, h("p", { class: "back" }, h("a", { href: "/tools" }, "All tools")),
      h("h2", { id: "tool-name", tabindex: "-1" }, line(tool.title || tool.name)),
      h("p", null, tool.title && [code(line(tool.name)), " "], copy(tool.name), " ", pill(said, mood_), " ", tool.state !== "ready" && pill(tool.state, mood(tool.state))),
      tool.description && (tool.description.length > 600 ? h("details", null, h("summary", null, gist(tool.description) || "Description"), long(tool.description, "Description")) : h("p", null, tool.description)),
      tool.unclassified && await may("admin") && classify(tool.name),
      h("h3", null, "Call it"),
      await may("admin") ? h("form", { novalidate: true, onsubmit: (event) => { event.preventDefault(); run(); }, onkeydown: (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } } },
        form.element, h("p", { class: "buttons" }, h("button", { class: "go", type: "submit" }, "Call"), h("span", { class: "hint" }, h("kbd", null, "Ctrl"), " ", h("kbd", null, "Enter"))))
        : h("p", { class: "muted" }, "You may look and not call."),
      answer,
      h("h3", null, "Checks before a call by ", code(tool.caller), " runs"),
      h("ol", { class: "checks" }, tool.rungs.map((one) => h("li", null, pill(one.verdict, VERDICTS[one.verdict] ?? ""), h("span", null, h("b", null, one.name), " ", h("span", { class: "muted" }, line(one.reason)))))),
      h("details", null, h("summary", null, "Definition and route"),
        facts([["Route", tool.route.map(line).join(" / ")], ["Alias", tool.alias], ["Name at its server", tool.original], ["Hops", String(tool.hops)], ["Era", tool.era], ["Owner", [tool.owner.kind, tool.owner.principal, tool.owner.authority].filter(Boolean).join(" ")]]),
        long(layout(JSON.stringify(tool.definition)), "Definition")));
  } catch (error) {
    if (error.status !== 401) put(detail, h("p", { class: "back" }, h("a", { href: "/tools" }, "All tools")), failure(error));
  }
}

put(split, h("section", { class: "list", "aria-label": "Tools" }, h("label", null, "Find a tool", words), told, list), h("section", { "aria-label": "The tool" }, detail));
put(main(), h("h1", null, "Tools"), h("p", { class: "lead" }, h("a", { href: "/names" }, "What tool names mean")), split);
addEventListener("popstate", show);
keys({ "/": () => words.focus() });
on("open", search);
const unclassified = h("div");
main().insertBefore(unclassified, split);
on("status", (status) => {
  put(unclassified, status.gate.unclassified > 0 && h("p", { class: "told" }, count(status.gate.unclassified, "tool has", "tools have"), " no class yet, and calls wait. ", h("a", { href: "/classification" }, "Classify all at once")));
  if (version !== null && version !== status.catalog.version) search();
  version = status.catalog.version;
});
show();
start();
