// Agents inside the safety loop: what they are at, which are blocked, and where that is decided.
import { failure, get, may, post } from "/console/api.js";
import { code, count, empty, h, line, main, pill, put } from "/console/dom.js";
import { on, start } from "/console/live.js";

const list = h("ul", { class: "rows live-data" });
const told = h("div");
let isAdmin = false;

function abort(agent) {
  return h("button", { type: "button", onclick: async () => {
    try { await post("/admin/agents/abort", { principal: agent.principal, name: agent.name }); await again(); } catch (error) { put(told, failure(error)); }
  } }, "End what it is doing");
}

function row(agent) {
  const state = agent.is_blocked ? "blocked" : agent.is_paused ? "paused" : agent.status || "known";
  const mood = agent.is_blocked ? "bad" : agent.is_paused ? "warn" : agent.status === "running" ? "info" : "";
  return h("li", null, h("div", { class: "row" }, pill(state, mood), h("span", { class: "name" }, line(agent.name)), h("span", { class: "end" }, count(agent.steps, "step")),
    h("span", { class: "sub" }, line(agent.principal), agent.reason ? " · " + line(agent.reason) : ""),
    h("span", { class: "sub buttons" }, agent.approval_id && h("a", { class: "button", href: "/approvals/" + encodeURIComponent(agent.approval_id) }, "Decide"), isAdmin && agent.status === "running" && abort(agent))));
}

async function again() {
  try {
    isAdmin = await may("admin");
    const { mode, agents } = await get("/admin/agents");
    put(list, agents.map(row));
    list.hidden = agents.length === 0;
    put(told, agents.length > 0 ? h("p", { class: "hint" }, "safety.mode is ", code(mode)) : mode === "disabled"
      ? empty("The safety loop is off", h("p", null, "With ", code("[safety] mode = \"enforcing\""), " in interlock.toml, agents report what they do, and a dangerous step waits for a person here."))
      : empty("No agent has begun anything", h("p", null, "Agents that use ", code("execute_agent"), " appear here; safety.mode is ", code(mode), ".")));
  } catch (error) {
    if (error.status !== 401) put(told, failure(error));
  }
}

put(main(), h("h1", null, "Agents"), h("p", { class: "lead" }, "Agents inside the safety loop, the blocked ones first."), told, list);
on("open", again);
on("status", again);
on("approval", again);
start();
