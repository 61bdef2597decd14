// A form for a tool's arguments, made of its JSON Schema. What is typed is sent as it was typed: numbers keep their
// digits. What a form cannot say well (lists, objects, choices between shapes) is written as JSON, checked as it is typed.
import { h, layout, line, plain, put } from "/console/dom.js";

const NUMBER = /^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$/;
const DEPTH_MAX = 8;

/** The schema behind local references. */
function resolve(schema, root, depth = 0) {
  if (schema === null || typeof schema !== "object" || depth > DEPTH_MAX) return {};
  if (typeof schema.$ref !== "string") return schema;
  if (!schema.$ref.startsWith("#/")) return {};
  let at = root;
  for (const part of schema.$ref.slice(2).split("/")) {
    const name = part.replace(/~1/g, "/").replace(/~0/g, "~");
    at = at && Object.hasOwn(at, name) ? at[name] : undefined;
  }
  const { $ref: _, ...beside } = schema;
  return { ...resolve(at ?? {}, root, depth + 1), ...beside };
}

/** Of a type, or of one that may also be null. */
function typeOf(schema) {
  const types = (Array.isArray(schema.type) ? schema.type : [schema.type]).filter((one) => one !== "null");
  if (types.length === 1 && types[0]) return types[0];
  if (Array.isArray(schema.anyOf)) {
    const arms = schema.anyOf.filter((one) => one?.type !== "null");
    if (arms.length === 1 && arms[0] && !arms[0].$ref) return typeOf(arms[0]);
  }
  return schema.enum ? "string" : schema.properties ? "object" : "any";
}

function jsonFault(text, type) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    return "This is not JSON: " + error.message.replace(/^JSON\.parse: /, "");
  }
  const is = Array.isArray(value) ? "array" : value === null ? "null" : typeof value;
  if ((type === "array" || type === "object") && is !== type) return "This must be " + (type === "array" ? "a list: [ … ]" : "an object: { … }");
  return null;
}

function numberFault(text, schema, type) {
  if (!NUMBER.test(text)) return "This must be a number.";
  const value = Number(text);
  if (type === "integer" && !Number.isInteger(value)) return "This must be a whole number.";
  if (typeof schema.minimum === "number" && value < schema.minimum) return "At least " + schema.minimum + ".";
  if (typeof schema.maximum === "number" && value > schema.maximum) return "At most " + schema.maximum + ".";
  return null;
}

function textFault(text, schema) {
  const length = [...text].length;
  if (typeof schema.minLength === "number" && length < schema.minLength) return "At least " + schema.minLength + " characters.";
  if (typeof schema.maxLength === "number" && length > schema.maxLength) return "At most " + schema.maxLength + " characters.";
  return null;
}

let ids = 0;

/** One argument: its element, `json()` (null: left out) and `fault()`. */
function field(name, schema, isRequired) {
  const type = typeOf(schema), id = "field-" + ++ids;
  let input, json, check = () => null;
  const choices = Array.isArray(schema.enum) ? schema.enum : type === "boolean" ? [true, false] : "const" in schema ? [schema.const] : null;
  if (choices) {
    input = h("select", { id }, h("option", { value: "" }, isRequired ? "choose" : "— left out —"),
      choices.slice(0, 1000).map((one, at) => h("option", { value: String(at) }, line(typeof one === "string" ? one : JSON.stringify(one)))));
    json = () => (input.value === "" ? null : JSON.stringify(choices[Number(input.value)]));
    if (typeof schema.default !== "undefined" && isRequired) input.value = String(Math.max(0, choices.indexOf(schema.default)));
  } else if (type === "integer" || type === "number") {
    input = h("input", { id, inputmode: type === "integer" ? "numeric" : "decimal", autocomplete: "off" });
    json = () => (input.value.trim() === "" ? null : input.value.trim());
    check = () => (json() === null ? null : numberFault(json(), schema, type));
  } else if (type === "string") {
    input = h("textarea", { id, rows: "1", spellcheck: "false", autocapitalize: "off" });
    json = () => (input.value === "" ? null : JSON.stringify(input.value));
    check = () => (input.value === "" ? null : textFault(input.value, schema));
  } else {
    input = h("textarea", { id, rows: "3", class: "mono", spellcheck: "false", autocapitalize: "off", placeholder: type === "array" ? "[ … ]" : type === "object" ? "{ … }" : "JSON" });
    json = () => (input.value.trim() === "" ? null : input.value);
    check = () => (json() === null ? null : jsonFault(json(), type));
  }
  const wrong = h("p", { class: "wrong", id: id + "-wrong" });
  const limits = [schema.minimum !== undefined ? "from " + schema.minimum : "", schema.maximum !== undefined ? "to " + schema.maximum : "",
    schema.default !== undefined ? "default " + JSON.stringify(schema.default) : "", schema.format || "", schema.pattern ? "pattern " + schema.pattern : ""].filter(Boolean).join(", ");
  const kind = choices ? "" : type === "any" ? "JSON" : type + (type === "array" || type === "object" ? ", as JSON" : "");
  const said = [kind, limits, schema.description || schema.title].filter(Boolean).join(" · ");
  const hint = h("p", { class: "hint", id: id + "-hint" }, line(said).slice(0, 2000));
  input.setAttribute("aria-describedby", hint.id + " " + wrong.id);
  if (isRequired) input.setAttribute("aria-required", "true");
  const fault = () => {
    const found = isRequired && json() === null ? "This is required." : check();
    put(wrong, found);
    if (found) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
    return found;
  };
  input.addEventListener("input", () => { if (input.getAttribute("aria-invalid") || type === "array" || type === "object" || type === "any") fault(); });
  const element = h("div", { class: "field" }, h("label", { for: id }, line(name), isRequired && h("span", { class: "required", "aria-hidden": "true" }, " *")), input, hint, wrong);
  return { name, input, element, json, fault };
}

/** The form: `element`, and `json()` which gives the arguments as text, or null after it has shown what is wrong. */
export function argumentForm(inputSchema) {
  const root = inputSchema && typeof inputSchema === "object" ? inputSchema : {};
  const schema = resolve(root, root);
  const properties = schema.properties && typeof schema.properties === "object" ? schema.properties : {};
  const required = new Set(Array.isArray(schema.required) ? schema.required : []);
  const names = Object.keys(properties).slice(0, 200);
  names.sort((a, b) => required.has(b) - required.has(a));
  const fields = names.map((name) => field(name, resolve(properties[name], root), required.has(name)));
  const whole = field("Arguments as JSON", { type: "object" }, true);
  let asJson = names.length === 0 && schema.additionalProperties !== false && typeof root.type !== "undefined" && (schema.anyOf || schema.oneOf || schema.allOf);

  const text = () => "{" + fields.filter((one) => one.json() !== null).map((one) => JSON.stringify(one.name) + ":" + one.json()).join(",") + "}";
  const body = h("div");
  const draw = () => {
    put(body, asJson ? whole.element : fields.length ? fields.map((one) => one.element) : h("p", { class: "muted" }, "It takes no arguments."));
    for (const one of modes.children) one.setAttribute("aria-pressed", String((one.dataset.mode === "json") === Boolean(asJson)));
  };
  const toJson = () => { if (!asJson) { const made = text(); whole.input.value = jsonFault(made) ? made : plain(layout(made)); } asJson = true; draw(); };
  const toForm = () => {
    if (asJson) fill(whole.input.value);
    asJson = false;
    draw();
  };
  const fill = (given) => {
    try {
      const values = JSON.parse(given || "{}");
      for (const one of fields) {
        if (!Object.hasOwn(values, one.name)) continue;
        const value = values[one.name];
        if (one.input.tagName === "SELECT") {
          const at = [...one.input.options].findIndex((option) => option.textContent === line(typeof value === "string" ? value : JSON.stringify(value)));
          if (at >= 0) one.input.selectedIndex = at;
        } else one.input.value = typeof value === "string" && !one.input.classList.contains("mono") ? value : JSON.stringify(value);
      }
    } catch { /* it is shown where it is written */ }
  };
  const modes = h("div", { class: "segments", role: "group", "aria-label": "How to write the arguments" },
    h("button", { type: "button", "data-mode": "form", onclick: toForm }, "Form"), h("button", { type: "button", "data-mode": "json", onclick: toJson }, "JSON"));
  draw();
  return {
    element: h("div", null, h("p", null, modes), body),
    json() {
      if (asJson) return whole.fault() ? (whole.input.focus(), null) : whole.json();
      const wrong = fields.filter((one) => one.fault());
      if (wrong.length) { wrong[0].input.focus(); return null; }
      return text();
    },
  };
}
