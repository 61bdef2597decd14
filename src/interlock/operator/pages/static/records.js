// Records of the audit log, as rows.
import { clock, facts, h, layout, line, pill } from "/console/dom.js";

const MOODS = { ok: "good", done: "good", approved: "good", made: "good", tool_error: "warn", held: "warn", refused: "bad", error: "bad", denied: "bad", timeout: "bad", lost: "bad", not_sent: "bad", failed: "bad", cancelled: "" };

export const result = (record) => (record.reason === "confirmation_required" ? "held" : record.outcome || record.verdict || "noted");
export const what = (record) => record.tool || record.method || "record";

export function row(record) {
  const outcome = result(record);
  const sub = [record.who, record.tool ? record.method : "", record.via ? "via " + record.via : "", record.reason].filter(Boolean).join(" · ");
  return h("li", { "data-seq": record.seq }, h("details", null,
    h("summary", { class: "row" },
      pill(line(outcome).slice(0, 24), MOODS[outcome] ?? "info"),
      h("span", { class: "name" }, line(what(record)).slice(0, 300)),
      h("span", { class: "end" }, record.ms ? Math.round(record.ms).toLocaleString("en") + " ms · " : "", record.at ? clock(record.at) : ""),
      h("span", { class: "sub" }, line(sub).slice(0, 600))),
    h("div", { class: "inside" }, facts([["Sequence", String(record.seq)], ["Hash", h("code", null, record.hash)]]),
      h("pre", { tabindex: "0", role: "region", "aria-label": "The whole record" }, layout(JSON.stringify(record)).slice(0, 20000)))));
}
