// Classification: what tools are that do not say it themselves, in one table, signed at once.
import { failure, get, may, post } from "/console/api.js";
import { code, count, empty, h, line, main, put } from "/console/dom.js";
import { on, start } from "/console/live.js";
import { asserted } from "/console/webauthn.js";

const CLASSES = ["read_only", "reversible", "irreversible"];
const WHY = { annotations: "its server says so", name: "its name suggests it", schema: "its arguments suggest it", nothing: "nothing suggests less" };
const SIGNED_MAX = 200; // tools in one signature
const place = h("div");
const said = h("p", { class: "told", role: "status" });
let version = null, isBusy = false;

const uuid = () => {
  const hex = [...crypto.getRandomValues(new Uint8Array(16))].map((one, at) => (at === 6 ? (one & 15) | 64 : at === 8 ? (one & 63) | 128 : one).toString(16).padStart(2, "0")).join("");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-");
};

/** A row, and what the person says of its tool: null leaves it as it is. */
function row(tool, number) {
  const sure = h("input", { type: "checkbox", id: "sure-" + number });
  const doubt = h("label", { class: "wrong", for: "sure-" + number, hidden: true }, sure, " ", line(tool.doubt || ""), ". It is read_only all the same");
  const chosen = h("select", { id: "class-" + number, "aria-label": "What " + tool.tool + " is", onchange: () => { isBusy = true; ask(); } },
    CLASSES.map((one) => h("option", null, one)), h("option", { value: "" }, "leave it open"));
  chosen.value = tool.class;
  const ask = () => { doubt.hidden = chosen.value !== "read_only" || tool.doubt === null; };
  ask();
  return {
    element: h("tr", null, h("td", null, h("a", { href: "/tools?" + new URLSearchParams({ tool: tool.tool }) }, line(tool.tool))),
      h("td", null, chosen, doubt),
      h("td", null, tool.question ? h("b", null, line(tool.question)) : WHY[tool.by] || line(tool.by)),
      h("td", { class: "muted" }, line(tool.description || "").slice(0, 200))),
    read: () => {
      if (!chosen.value) return null;
      if (!doubt.hidden && !sure.checked) throw new Error(line(tool.tool) + ": " + line(tool.doubt) + ". Say that it is read_only all the same, or choose another class");
      return { tool: tool.tool, digest: tool.digest, class: chosen.value };
    },
  };
}

async function sign(rows, prove) {
  try {
    const entries = rows.map((one) => one.read()).filter((one) => one !== null).slice(0, SIGNED_MAX);
    if (entries.length === 0) throw new Error("every tool is left open");
    put(said, "It is being signed.");
    const list = { id: uuid(), entries };
    const done = await post("/admin/classification", { ...list, proof: await prove(list) });
    put(said, count(done.classified.length, "tool") + " classified, remembered for their definitions. ",
      done.left_out.map((one) => line(one.tool) + " is left out: " + line(one.why) + ". "));
    isBusy = false;
    await draw();
  } catch (error) {
    put(said, "Nothing was signed: " + error.message);
  }
}

async function draw() {
  const [{ tools }, { keys: known, passkey_origin: origin }] = await Promise.all([get("/admin/classification"), get("/admin/approvers")]);
  if (isBusy) return;
  if (tools.length === 0) return void put(place, empty("Every tool has a class", h("p", null, "A tool that does not say what it does appears here, and its calls wait until a person has said it.")));
  const rows = tools.map(row);
  const key = h("select", null, known.map((name) => h("option", null, line(name))));
  const passphrase = h("input", { type: "password", required: true, autocomplete: "current-password" });
  const byPasskey = origin === location.origin && h("button", { type: "button", class: "go", onclick: () => sign(rows, async (list) => asserted(await post("/admin/classification/passkey", list))) }, "Sign with a passkey");
  const byKey = known.length > 0 && h("form", { class: "bar", onsubmit: (event) => {
    event.preventDefault();
    const typed = passphrase.value;
    passphrase.value = "";
    sign(rows, async (list) => (await post("/admin/classification/proof", { ...list, key: key.value, passphrase: typed })).proof);
  } }, h("label", null, "Operator key", key), h("label", null, "Its passphrase", passphrase), h("button", { class: "go fixed" }, "Sign with the key"));
  put(place, h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Proposals" }, h("table", { class: "list", id: "classes" },
    h("thead", null, h("tr", null, ["Tool", "It is", "Because", "Its server says"].map((head) => h("th", { scope: "col" }, head)))), h("tbody", null, rows.map((one) => one.element)))),
    !await may("admin") ? h("p", { class: "muted" }, "You may look and not sign.")
      : byPasskey || byKey ? h("section", { class: "box" }, h("h2", null, "Sign all of it at once"), h("div", { class: "buttons" }, byPasskey), byKey)
        : h("p", { class: "told" }, "No key may sign here: ", h("a", { href: "/approvers" }, "who may approve"), ". Where yours is: ", code("interlock tools classify"), "."));
}

const again = () => { if (!isBusy) draw().catch((error) => { if (error.status !== 401) put(place, failure(error)); }); };
put(main(), h("h1", null, "Classification"), h("p", { class: "lead" }, "What tools are that do not say it themselves, or whose names contradict what their servers say. Remembered as long as a definition stays the same."), said, place);
on("open", again);
on("status", (status) => { if (version !== null && version !== status.catalog.version) again(); version = status.catalog.version; });
start();
