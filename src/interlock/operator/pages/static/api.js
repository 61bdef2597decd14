// The operator API: JSON over the page's own origin, with the session of this browser.
import { h, main, put } from "/console/dom.js";

export class Refused extends Error {
  constructor(status, answer) {
    super(answer.message || "the node answered " + status);
    this.status = status;
    this.error = answer.error;
    this.details = answer.details || {};
  }
}

let known;
/** Who this is, and what they may do; asked once. */
export function session() {
  known ??= get("/session").catch((error) => {
    known = undefined;
    throw error;
  });
  return known;
}

export const may = async (role) => (await session()).roles.includes(role);

/** What shows the node that a request comes from the page that logged in. */
export const proved = (headers) => {
  const key = localStorage.getItem("interlock-session");
  return key ? { ...headers, "X-Interlock-Session": key } : headers;
};

export async function request(method, path, body, more) {
  const headers = proved({ Accept: "application/json" });
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, body, credentials: "same-origin", ...more });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { error: "unreachable", message: "the node does not answer" });
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  const isOut = answer.status === 401 || said.error === "session_key";
  if (isOut) signIn();
  throw new Refused(isOut ? 401 : answer.status, said);
}

export const get = async (path) => (await request("GET", path)).json();
export const post = async (path, body) => (await request("POST", path, body === undefined ? undefined : JSON.stringify(body))).json();

/** The events of an answer that is an event stream. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let kept = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    kept += value;
    for (let end; (end = kept.indexOf("\n\n")) >= 0; kept = kept.slice(end + 2)) {
      const data = kept.slice(0, end).split("\n").filter((one) => one.startsWith("data:")).map((one) => one.slice(5).replace(/^ /, "")).join("\n");
      if (data) yield data;
    }
  }
}

const token = h("input", { type: "password", autocomplete: "off", spellcheck: "false", required: true });
const told = h("p", { class: "wrong", role: "alert" });

/** A token becomes a login link, and the link a session: the token itself is kept nowhere. */
async function logIn(given) {
  try {
    const answer = await fetch("/admin/logins", { method: "POST", headers: { Accept: "application/json", Authorization: "Bearer " + given }, credentials: "omit" });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.message);
    location.assign("/login" + new URL(said.url).hash);
  } catch (error) {
    put(told, error.message);
  }
}

/** The page for somebody whom the node does not know (any more). */
export function signIn() {
  if (document.getElementById("sign-in")) return;
  put(main(), h("section", { id: "sign-in", class: "empty" },
    h("strong", null, "You are not logged in here"),
    h("p", null, "On the machine of the node run ", h("code", null, "interlock open"), ": it opens this page with a link that logs this browser in."),
    h("p", null, "Elsewhere, an operator's token opens it for some hours; ", h("code", null, "interlock access token --for operator --name NAME"), " makes one."),
    h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); logIn(token.value.trim()); } }, h("label", null, "Token of an operator", token), h("button", { class: "go fixed" }, "Log in")), told));
  document.title = "Log in · Interlock";
}

/** What went wrong, as a paragraph that screen readers hear at once. */
export const failure = (error) => h("p", { class: "error", role: "alert" }, error.message);
