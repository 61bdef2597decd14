// The audit log: newest first, live at the top, older pages on demand.
import { failure, get } from "/console/api.js";
import { code, count, empty, h, main, put } from "/console/dom.js";
import { on, start } from "/console/live.js";
import { result, row, what } from "/console/records.js";

const PAGE = 100, KEPT = 2000;
let records = []; // newest first
const list = h("ul", { class: "rows live-data" });
const told = h("div");
const words = h("input", { type: "search", placeholder: "tool, principal, reason …", oninput: () => draw() });
const outcome = h("select", { onchange: () => draw() }, h("option", { value: "" }, "any"), h("option", { value: "bad" }, "refused or failed"), h("option", { value: "good" }, "done"));
const older = h("button", { type: "button", onclick: () => earlier() }, "Earlier records");

const GOOD = new Set(["ok", "done", "approved", "made"]);
function matches(record) {
  const wanted = words.value.trim().toLowerCase();
  if (outcome.value && (outcome.value === "good") !== GOOD.has(result(record))) return false;
  return !wanted || [what(record), record.who, record.method, record.reason, record.via, result(record)].some((text) => text && String(text).toLowerCase().includes(wanted));
}

function draw() {
  const shown = records.filter(matches);
  put(list, shown.map(row));
  list.hidden = shown.length === 0;
  older.hidden = records.length === 0 || records.at(-1).seq <= 1;
  put(told, shown.length > 0 ? h("p", { class: "hint" }, count(shown.length, "record") + (shown.length < records.length ? " of " + records.length : ""))
    : records.length > 0 ? empty("No record fits", h("p", null, "Change the filter, or look at earlier records."))
      : empty("Nothing has happened yet", h("p", null, "Every call and every decision is recorded here, in a log that shows when it was changed: ", code("interlock audit verify"), ".")));
}

function add(newer) {
  const last = records[0]?.seq ?? 0;
  const fresh = newer.filter((one) => one.seq > last).reverse();
  records = [...fresh, ...records].slice(0, KEPT);
  const shown = fresh.filter(matches);
  if (shown.length && list.children.length) {
    list.prepend(...shown.map(row));
    while (list.children.length > KEPT) list.lastChild.remove();
  }
  else if (shown.length) draw();
}

async function again() {
  try {
    const { last } = await get("/admin/audit?after=9007199254740991&limit=1");
    records = (await get("/admin/audit?after=" + Math.max(0, last - PAGE) + "&limit=" + PAGE)).records.reverse();
    draw();
  } catch (error) {
    if (error.status !== 401) put(told, failure(error));
  }
}

async function earlier() {
  const first = records.at(-1).seq;
  const before = Math.max(0, first - 1 - PAGE);
  try {
    const page = await get("/admin/audit?after=" + before + "&limit=" + Math.max(1, first - 1 - before));
    const more = page.records.filter((one) => one.seq < first).reverse();
    records = [...records, ...more];
    draw();
    older.hidden = more.length === 0 || records.at(-1).seq <= 1;
  } catch (error) {
    put(told, failure(error));
  }
}

put(main(), h("h1", null, "Activity"), h("p", { class: "lead" }, "Every call and every decision, as the audit log has them."),
  h("form", { class: "bar", onsubmit: (event) => event.preventDefault() }, h("label", null, "Find", words), h("label", { class: "fixed" }, "Outcome", outcome)),
  told, list, h("p", null, older));
on("open", again);
on("records", add);
start();
