// A call of a tool, from the button to its result: progress, cancellation, the wait for a person's decision, the answer.
import { events, get, request } from "/console/api.js";
import { count, empty, facts, h, layout, line, long, pill, put } from "/console/dom.js";
import { on } from "/console/live.js";

const size = (base64) => count(Math.floor(base64.length * 3 / 4), "byte");

function block(one) {
  if (one?.type === "text" && typeof one.text === "string") {
    const isJson = /^\s*[[{]/.test(one.text) && (() => { try { JSON.parse(one.text); return true; } catch { return false; } })();
    return long(isJson ? layout(one.text) : one.text, "Text of the result");
  }
  if (one?.type === "resource" && one.resource) return [h("p", null, "Resource ", h("code", null, one.resource.uri)), typeof one.resource.text === "string" ? long(one.resource.text, "The resource") : h("p", { class: "muted" }, "binary, " + size(String(one.resource.blob || "")))];
  if (one?.type === "resource_link") return h("p", null, "Link to ", h("code", null, one.uri));
  if (typeof one?.data === "string") return h("p", { class: "muted" }, line(String(one.type)) + " " + line(String(one.mimeType || "")) + ", " + size(one.data) + "; interlock tools call TOOL --json has it");
  return long(layout(JSON.stringify(one)), "Part of the result");
}

function repeats(result) {
  const [only, ...more] = result.content || [];
  if (more.length || only?.type !== "text") return false;
  try { return JSON.stringify(JSON.parse(only.text)) === JSON.stringify(result.structuredContent); } catch { return false; }
}

function shownResult(result) {
  const parts = (Array.isArray(result.content) ? result.content : []).map(block);
  if (result.structuredContent !== undefined && !repeats(result)) parts.push(h("h3", null, "Structured content"), long(layout(JSON.stringify(result.structuredContent)), "Structured content"));
  return parts.length ? parts : h("p", { class: "muted" }, "The result is empty.");
}

function shownError(error) {
  const data = error.data && typeof error.data === "object" ? error.data : {};
  const rest = Object.keys(data).length ? h("details", null, h("summary", null, "Details"), long(layout(JSON.stringify(data)), "Details of the error")) : null;
  return [h("p", { class: "error" }, data.detail && data.detail !== error.message ? line(error.message) + ": " + line(data.detail) : line(error.message || "the call failed")),
    facts([["Reason", typeof data.reason === "string" ? data.reason : ""], ["Code", String(error.code ?? "")], ["Next", typeof data.next === "string" ? data.next : ""]]), rest];
}

let waiting = null; // for a decision: { id, decided }
on("approval", (one) => { if (waiting && one.id === waiting.id) waiting.decided(one); });
on("open", async () => { // it may have been decided while the connection was away
  if (!waiting) return;
  const one = await get("/approvals/" + encodeURIComponent(waiting.id)).catch(() => null);
  if (one && waiting && one.id === waiting.id) waiting.decided(one);
});

/** Calls `name` with `text` as its arguments; draws into `place`. */
export async function call(name, text, place) {
  const stop = new AbortController();
  const began = performance.now();
  const elapsed = h("span", { class: "muted" });
  const said = h("p", { role: "status" }, "Calling …");
  const bar = h("progress", { "aria-label": "Progress" });
  const cancel = h("button", { type: "button", onclick: () => stop.abort() }, "Cancel");
  const card = h("section", { class: "card", id: "answer", "aria-label": "The call" }, said, bar, h("p", { class: "buttons" }, cancel, elapsed));
  put(place, card);
  card.scrollIntoView({ block: "nearest" });
  const ticking = setInterval(() => put(elapsed, Math.round((performance.now() - began) / 1000) + " s"), 1000);
  const finish = (state, kind, ...parts) => {
    card.dataset.state = state;
    put(card, h("p", { role: "status" }, pill(state, kind), " ", h("span", { class: "muted" }, Math.round(performance.now() - began).toLocaleString("en") + " ms")), ...parts);
  };
  try {
    const answer = await request("POST", "/admin/tools/" + encodeURIComponent(name) + "/call", '{"arguments":' + text + "}", { signal: stop.signal });
    let last = null;
    for await (const data of events(answer)) {
      const event = JSON.parse(data);
      if (event.progress) {
        const { progress, total, message } = event.progress;
        if (total) { bar.max = total; bar.value = progress; }
        put(said, message ? line(message) : total ? Math.round(100 * progress / total) + " %" : "Working …");
      } else last = event;
    }
    if (!last) finish("no answer", "bad", h("p", null, "The node ended the call without an answer."));
    else if (last.held) hold(last.held);
    else if (last.error) finish("refused", "bad", shownError(last.error));
    else finish(last.result.isError ? "the tool failed" : "done", last.result.isError ? "bad" : "good", shownResult(last.result));
  } catch (error) {
    if (error.name === "AbortError") finish("cancelled", "", h("p", null, "The server was told. Whether it had begun is its own matter."));
    else finish("refused", "bad", h("p", { class: "error", role: "alert" }, error.message));
  } finally {
    clearInterval(ticking);
  }

  function hold(held) {
    const here = "/approvals/" + encodeURIComponent(held.approval_id);
    const isHere = !held.url || new URL(held.url, location.href).pathname === here;
    const link = isHere ? here : held.url;
    finish("held", "warn", h("p", null, "This call waits for a person. Once it is approved, exactly this call runs, once; this page then sends it."),
      h("p", { class: "buttons" }, h("a", { class: "button", href: link, target: "_blank", rel: "noopener" }, "Decide on it"),
        h("button", { type: "button", onclick: () => { waiting = null; call(name, text, place); } }, "Call again"),
        h("button", { type: "button", onclick: () => { waiting = null; put(place, empty("Not waiting any more", h("p", null, "The call stays in the inbox until it expires."))); } }, "Stop waiting")));
    waiting = { id: held.approval_id, decided(one) {
      if (one.status === "approved" || (one.kind === "definition" && one.status === "done")) { waiting = null; call(name, text, place); }
      else if (one.status !== "pending") {
        waiting = null;
        finish(one.status, "bad", h("p", null, "Nothing ran" + (one.decision?.reason ? ": " + line(one.decision.reason) : ".")));
      }
    } };
  }
}
