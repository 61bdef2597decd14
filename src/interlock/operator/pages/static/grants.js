// Standing grants: what they let pass, how often they did, and their end; and one to be signed, from a held call.
import { failure, get, may, post } from "/console/api.js";
import { ago, code, count, empty, h, line, main, pill, put, when } from "/console/dom.js";
import { on, start } from "/console/live.js";
import { asserted } from "/console/webauthn.js";

const list = h("ul", { class: "rows live-data" });
const told = h("div");
const signing = h("div");
const approval = new URLSearchParams(location.search).get("approval");
let isAdmin = false;

const uses = ({ used, terms }) => (terms.calls === null ? count(used, "call") : used + " of " + count(terms.calls, "call"));

function revoke(grant) {
  return h("button", { type: "button", onclick: async () => {
    try { await post("/admin/grants/" + grant.terms.id + "/revoke"); await again(); } catch (error) { put(told, failure(error)); }
  } }, "Revoke");
}

function row(grant) {
  const isActive = grant.state === "active";
  return h("li", null, h("details", null,
    h("summary", { class: "row" }, pill(isActive ? "active" : "over", isActive ? "good" : ""), h("span", { class: "name" }, line(grant.terms.tool)), h("span", { class: "end" }, uses(grant)),
      h("span", { class: "sub" }, line(grant.terms.who) + " · signed by " + line(grant.anchor) + " " + ago(grant.signed_at) + (isActive ? "" : " · " + line(grant.over)))),
    h("div", { class: "inside" }, h("ul", null, grant.words.map((words) => h("li", null, line(words)))),
      grant.terms.reason && h("p", null, "Reason: " + line(grant.terms.reason)),
      h("p", { class: "hint" }, "id ", code(grant.terms.id), grant.used_at ? " · last used " : "", grant.used_at && when(grant.used_at)),
      grant.approvals.length > 0 && h("p", null, "Calls: ", grant.approvals.map((id) => [h("a", { href: "/approvals/" + encodeURIComponent(id) }, id.slice(0, 8)), " "])),
      isAdmin && isActive && h("p", null, revoke(grant)))));
}

async function again() {
  try {
    isAdmin = await may("admin");
    const { grants } = await get("/admin/grants");
    const sorted = grants.toReversed().sort((a, b) => (a.state === b.state ? 0 : a.state === "active" ? -1 : 1));
    const open = new Set([...list.querySelectorAll("details[open] code")].map((one) => one.textContent));
    put(list, sorted.map(row));
    for (const one of list.querySelectorAll("details")) one.open = open.has(one.querySelector("code").textContent);
    list.hidden = grants.length === 0;
    put(told, grants.length > 0 ? null : empty("No standing grants", h("p", null, "A grant lets calls that are alike run without being held. Open a call in the ",
      h("a", { href: "/approvals" }, "inbox"), " and sign one from it, or run ", code("interlock grants sign --help"), ".")));
  } catch (error) {
    if (error.status !== 401) put(told, failure(error));
  }
}

// One to be signed. Each argument of the call has a line: it stays as it is unless the person says otherwise.
const KINDS = { equals: "exactly this", below: "a path below", range: "a number between", one_of: "one of", any: "anything" };

function argument(rule, number, changed) {
  const held = rule.kind === "equals" ? rule.value : null;
  const name = rule.at.slice(1) || "all arguments";
  const value = h("input", { "aria-label": "Value of " + name, oninput: changed });
  const kind = h("select", { id: "rule-" + number, onchange: () => { fill(); changed(); } }, Object.entries(KINDS).map(([one, words]) => h("option", { value: one }, words)));
  const fill = () => {
    const isProposed = kind.value === rule.kind;
    const first = { equals: held, below: isProposed ? rule.value : "/", range: isProposed ? rule.value : [0, typeof held === "number" ? held : 0], one_of: isProposed ? rule.value : [held], any: null }[kind.value];
    value.value = kind.value === "below" ? first : kind.value === "equals" && rule.kind !== "equals" ? "as in the call" : JSON.stringify(first);
    value.disabled = kind.value === "equals";
    value.hidden = kind.value === "any";
  };
  kind.value = rule.kind;
  fill();
  const read = () => {
    if (kind.value === "equals") return null; // the node takes it from the call
    const each = rule.each && kind.value !== "any";
    return { at: rule.at, kind: kind.value, each, value: kind.value === "any" ? null : kind.value === "below" ? value.value : JSON.parse(value.value) };
  };
  return { element: h("div", { class: "field" }, h("label", { for: "rule-" + number }, line(name)), kind, value), read };
}

async function draw() {
  let draft = null, turn = 0;
  const words = h("ul");
  const wrong = h("p", { class: "wrong", role: "alert" });
  const said = h("p", { class: "told", role: "status" });
  const proposed = await post("/admin/grants/draft", { approval });
  const preview = async () => {
    const now = ++turn;
    draft = null;
    try {
      const rules = rows.map((one) => one.read()).filter((rule) => rule !== null);
      const made = await post("/admin/grants/draft", { approval, rules, calls: calls.value ? Number(calls.value) : null, seconds: time.value ? Number(time.value) : null, reason: reason.value || null });
      if (now !== turn) return;
      draft = made;
      put(words, draft.words.map((one) => h("li", null, line(one))), draft.is_held_below && h("li", null, "a node below holds these calls too, and goes on asking"));
      put(wrong);
    } catch (error) {
      if (now !== turn) return;
      put(words);
      put(wrong, error instanceof SyntaxError ? "a value is not JSON: texts stand in quotes" : error.message);
    }
  };
  const rows = proposed.terms.rules.map((rule, number) => argument(rule, number, preview));
  const calls = h("input", { type: "number", min: "1", max: "10000", value: "20", oninput: preview });
  const time = h("select", { onchange: preview }, [["3600", "an hour"], ["28800", "8 hours"], ["86400", "a day"], ["604800", "a week"], ["", "without an end"]].map(([value, text]) => h("option", { value }, text)));
  time.value = "28800";
  const reason = h("input", { maxlength: "1000", onchange: preview });
  const sign = async (prove) => {
    if (draft === null) return;
    put(said, "It is being signed.");
    try {
      const shown = draft;
      await post("/admin/grants", { terms: shown.terms, proof: await prove(shown) });
      location.assign("/grants");
    } catch (error) {
      put(said, "Nothing was signed: " + error.message);
    }
  };
  const byPasskey = proposed.passkey_origin === location.origin && h("button", { type: "button", class: "go", id: "sign",
    onclick: () => sign(async (shown) => asserted(await post("/admin/grants/passkey", { terms: shown.terms }))) }, "Sign with a passkey");
  const key = h("select", null, proposed.signing_keys.map((name) => h("option", null, name)));
  const passphrase = h("input", { type: "password", required: true, autocomplete: "current-password" });
  const byKey = proposed.signing_keys.length > 0 && h("form", { onsubmit: (event) => {
    event.preventDefault();
    const typed = passphrase.value;
    passphrase.value = "";
    sign(async (shown) => (await post("/admin/grants/proof", { terms: shown.terms, key: key.value, passphrase: typed })).proof);
  } }, h("label", null, "Operator key", key), h("label", null, "Its passphrase", passphrase), h("button", null, "Sign with the key"));
  put(signing, h("section", { class: "box" }, h("h2", null, "Sign a standing grant for ", code(line(proposed.terms.tool))),
    h("p", null, "Calls like this one by ", code(line(proposed.terms.who)), " then run without being held. Calls with any other argument are not covered."),
    rows.map((one) => one.element), h("div", { class: "bar" }, h("label", null, "How many calls", calls), h("label", null, "For", time), h("label", null, "Reason", reason)),
    h("h3", null, "What you sign"), words, wrong, h("div", { class: "buttons" }, byPasskey, byKey), said,
    !byPasskey && !byKey && h("p", null, "No key may sign here. Where yours is: ", code("interlock approve " + approval + " --standing"), ".")));
  await preview();
}

put(main(), h("h1", null, "Standing grants"), h("p", { class: "lead" }, "One signature for many calls that are alike, until it ends or is revoked."), signing, told, list);
if (approval !== null) draw().catch((error) => { if (error.status !== 401) put(signing, failure(error)); });
on("open", again);
on("approval", again);
start();
