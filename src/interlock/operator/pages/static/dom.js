// Elements made of text alone: nothing that a caller or a server wrote is ever read as markup.

// What could make a line read differently from what it holds: control and direction marks, other spaces, what no font
// shows. It stands as its escape, as on the terminal.
const HIDING = /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}\p{DI}\u2800\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]/gu;

const escaped = (sign) => {
  const code = sign.codePointAt(0);
  return code <= 0xffff ? "\\u" + code.toString(16).padStart(4, "0") : "\\U" + code.toString(16).padStart(8, "0");
};

/** Text in which everything can be seen; lines and tabs stay. */
export const plain = (text) => String(text).replace(HIDING, (sign) => (sign === "\n" || sign === "\t" ? sign : escaped(sign)));

/** On one line. */
export const line = (text) => plain(text).replace(/[\n\t]+/g, " ");

/** An element. Of `props`, `on…` are listeners, `class` and the rest attributes; false and null leave one out. */
export function h(tag, props, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "value") made.value = value;
    else made.setAttribute(name, value === true ? "" : line(value));
  }
  put(made, ...children);
  return made;
}

/** Gives an element these children and no others. */
export function put(element, ...children) {
  const nodes = children.flat(9).filter((one) => one !== null && one !== undefined && one !== false);
  element.replaceChildren(...nodes.map((one) => (one instanceof Node ? one : document.createTextNode(plain(one)))));
  return element;
}

export const main = () => document.querySelector("main");
const ASKED = { call: "call", definition: "definition", start: "start of an agent", step: "step of an agent", verify: "check of an agent", enrolment: "new approver", configuration: "loosened configuration", proposal: "proposal in a room", request: "request for a name" };
export const asked = (approval) => approval.source === "drivers" ? "server to trust" : ASKED[approval.kind] || approval.kind;
export const pill = (text, kind) => h("span", { class: "pill " + (kind || "") }, text);
export const code = (text) => h("code", null, text);

/** A list of facts; those without a value are left out. */
export const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));

/** What a page says while there is nothing: what that means, and what to do next. */
export const empty = (title, ...more) => h("div", { class: "empty" }, h("strong", null, title), ...more);

const SHOWN = 20000; // characters of a long text that are shown before somebody asks for all of it

/** Text of any length: folded when it is long, never cut without saying so. */
export function long(text, label) {
  const shown = plain(text.length > SHOWN ? text.slice(0, SHOWN) : text);
  const pre = h("pre", { tabindex: "0", role: "region", "aria-label": label }, shown);
  if (text.length <= SHOWN) return pre;
  const all = h("button", { type: "button", onclick: () => { put(pre, text); all.remove(); } },
    "Show all " + text.length.toLocaleString("en") + " characters");
  return h("div", null, pre, h("p", null, all));
}

/** JSON as people read it: the text itself, laid out; numbers keep their digits. */
export function layout(text) {
  let depth = 0, inside = false, out = "";
  const turn = () => "\n" + "  ".repeat(Math.min(depth, 20));
  for (let at = 0; at < text.length; at++) {
    const sign = text[at];
    if (inside) {
      out += sign;
      if (sign === "\\") out += text[++at] ?? "";
      else if (sign === '"') inside = false;
    } else if (sign === '"') { inside = true; out += sign; }
    else if (sign === "{" || sign === "[") {
      const rest = /^\s*([}\]])/.exec(text.slice(at + 1, at + 200));
      if (rest) { out += sign + rest[1]; at += rest[0].length; } else { depth++; out += sign + turn(); }
    } else if (sign === "}" || sign === "]") { depth = Math.max(0, depth - 1); out += turn() + sign; }
    else if (sign === ",") out += sign + turn();
    else if (sign === ":") out += ": ";
    else if (!" \t\r\n".includes(sign)) out += sign;
  }
  return out;
}

export const count = (number, one, many) => number.toLocaleString("en") + " " + (number === 1 ? one : many || one + "s");

export function ago(time) {
  const s = Math.max(0, (Date.now() - new Date(time)) / 1000);
  if (s < 60) return Math.floor(s) + " s ago";
  if (s < 3600) return Math.floor(s / 60) + " min ago";
  if (s < 86400) return Math.floor(s / 3600) + " h ago";
  return new Date(time).toLocaleDateString();
}

export const when = (time) => h("time", { datetime: time, title: time }, new Date(time).toLocaleString([], { dateStyle: "medium", timeStyle: "medium" }));
export const clock = (time) => h("time", { datetime: time, title: time }, new Date(time).toLocaleTimeString([], { hour12: false }));

export function left(seconds) {
  if (seconds === null || seconds === undefined) return "no time limit";
  const s = Math.max(0, Math.round(seconds));
  return s >= 7200 ? Math.floor(s / 3600) + " h left" : Math.floor(s / 60) + ":" + String(s % 60).padStart(2, "0") + " left";
}

/** The time that an approval has left, counted down from what the node said. */
export function countdown(one) {
  const span = h("span", { class: "end" }, left(one.left_s));
  if (one.left_s !== null) span.dataset.ends = String(performance.now() + 1000 * one.left_s);
  return span;
}
setInterval(() => {
  for (const one of document.querySelectorAll("[data-ends]")) put(one, left((Number(one.dataset.ends) - performance.now()) / 1000));
}, 1000);

/** The class of a link's state, for its colour. */
export const mood = (state) => ({ ready: "good", slow: "warn", degraded: "warn", connecting: "info", stopped: "", asleep: "" })[state] ?? "bad";
/** One that was idle is started by the next call. */
export const needsAttention = (state) => !["ready", "slow", "asleep"].includes(state);

/** A button beside a text that puts it on the clipboard. */
export function copy(text) {
  const button = h("button", { type: "button", class: "link", onclick: async () => {
    try { await navigator.clipboard.writeText(text); put(button, "copied"); } catch { put(button, "not allowed here"); }
  } }, "copy");
  return button;
}

const isTyping = (target) => target.closest("input, textarea, select, [contenteditable]");

/** Keys of the page, when nobody types. */
export function keys(table) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    const act = table[event.key];
    if (act) { event.preventDefault(); act(); }
  });
}
