// What the official suite asks a server for, on the official TypeScript SDK (2025-11-25).
// node typescript_fixture.mjs PORT NODE_MODULES
// The SDK's own fixture is in no package. Whatever asks the client does so in mid-call, as this SDK has it, and fails
// where the client did not declare that it can be asked.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.argv[3]}/`);
const load = (name) => import(pathToFileURL(require.resolve(`@modelcontextprotocol/sdk/${name}`)));
const { Server } = await load("server/index.js");
const { StreamableHTTPServerTransport } = await load("server/streamableHttp.js");
const types = await load("types.js");

const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const SOUND = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=";
const text = (said) => ({ type: "text", text: said });
const said = (...content) => ({ content });
const image = { type: "image", data: PIXEL, mimeType: "image/png" };
const embedded = (uri) => ({ type: "resource", resource: { uri, mimeType: "text/plain", text: "Embedded resource content" } });
const strings = (...names) => Object.fromEntries(names.map((name) => [name, { type: "string" }]));
const form = (properties) => ({ type: "object", properties });
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const note = (extra, method, params) => extra.sendNotification({ method, params });
const log = (extra, data) => note(extra, "notifications/message", { level: "info", data });

const elicit = async (ctx, message, properties) => {
  const params = { message, requestedSchema: form(properties) };
  return ctx.extra.sendRequest({ method: "elicitation/create", params }, types.ElicitResultSchema);
};
const sample = async (ctx, prompt) => {
  const params = { messages: [{ role: "user", content: text(prompt) }], maxTokens: 100 };
  return ctx.extra.sendRequest({ method: "sampling/createMessage", params }, types.CreateMessageResultSchema);
};
const roots = (ctx) => ctx.extra.sendRequest({ method: "roots/list" }, types.ListRootsResultSchema);
const NAMED = strings("name");
const OPTIONS = ["option1", "option2", "option3"];
const TITLED = ["First", "Second", "Third"].map((word, at) => ({ const: `value${at + 1}`, title: `${word} Option` }));
const told = (answer) => said(text(`Elicitation completed: action=${answer.action}, content=${JSON.stringify(answer.content ?? {})}`));
const state = { tools: 0, prompts: 0, subscribed: new Set() };

const tools = {
  test_simple_text: () => said(text("This is a simple text response for testing.")),
  test_image_content: () => said(image),
  test_audio_content: () => said({ type: "audio", data: SOUND, mimeType: "audio/wav" }),
  test_embedded_resource: () => said(embedded("test://embedded-resource")),
  test_multiple_content_types: () => said(text("Multiple content types test:"), image, embedded("test://mixed-content-resource")),
  test_error_handling: () => ({ ...said(text("This tool intentionally returns an error for testing")), isError: true }),
  test_tool_with_logging: async ({ extra }) => {
    for (const word of ["Tool execution started", "Tool processing data", "Tool execution completed"]) {
      await log(extra, word);
      await pause(50);
    }
    return said(text("Logged three times."));
  },
  test_logging_tool: async ({ extra }) => (await log(extra, "A log message"), said(text("Logged."))),
  test_tool_with_progress: async ({ extra }) => {
    const progressToken = extra._meta?.progressToken;
    for (const progress of progressToken === undefined ? [] : [0, 50, 100]) {
      await note(extra, "notifications/progress", { progressToken, progress, total: 100 });
      await pause(50);
    }
    return said(text("Reported progress."));
  },
  test_sampling: async (ctx) => said(text(`LLM response: ${(await sample(ctx, ctx.given.prompt)).content.text}`)),
  test_elicitation: async (ctx) => said(text(`User response: ${JSON.stringify(await elicit(ctx, ctx.given.message, strings("username", "email")))}`)),
  test_elicitation_sep1034_defaults: async (ctx) =>
    told(await elicit(ctx, "Please check these values.", {
      name: { type: "string", default: "John Doe" },
      age: { type: "integer", default: 30 },
      score: { type: "number", default: 95.5 },
      status: { type: "string", enum: ["active", "inactive", "pending"], default: "active" },
      verified: { type: "boolean", default: true },
    })),
  test_elicitation_sep1330_enums: async (ctx) =>
    told(await elicit(ctx, "Please choose.", {
      untitledSingle: { type: "string", enum: OPTIONS },
      titledSingle: { type: "string", oneOf: TITLED },
      legacyEnum: { type: "string", enum: ["opt1", "opt2", "opt3"], enumNames: ["Option One", "Option Two", "Option Three"] },
      untitledMulti: { type: "array", items: { type: "string", enum: OPTIONS } },
      titledMulti: { type: "array", items: { anyOf: TITLED } },
    })),
  test_x_mcp_header: ({ given }) => said(text(`Region ${given.region}`)),
  json_schema_2020_12_tool: () => said(text("Valid.")),
  test_missing_capability: async (ctx) => (await sample(ctx, "Can you sample?"), said(text("The client can sample."))),
  test_trigger_tool_change: async ({ server }) => ((state.tools += 1), await server.sendToolListChanged(), said(text("Changed."))),
  test_trigger_prompt_change: async ({ server }) => ((state.prompts += 1), await server.sendPromptListChanged(), said(text("Changed."))),
  test_streaming_elicitation: async (ctx) => (await elicit(ctx, "What is your name?", NAMED), said(text("Done."))),
  test_input_required_result_elicitation: async (ctx) => said(text(`Hello, ${(await elicit(ctx, "What is your name?", NAMED)).content?.name}`)),
  test_input_required_result_sampling: async (ctx) => said(text((await sample(ctx, "What is the capital of France?")).content.text)),
  test_input_required_result_list_roots: async (ctx) => said(text(JSON.stringify((await roots(ctx)).roots))),
  test_input_required_result_request_state: async (ctx) => (await elicit(ctx, "Please confirm.", { ok: { type: "boolean" } }), said(text("state-ok"))),
  test_input_required_result_multiple_inputs: async (ctx) => (await Promise.all([elicit(ctx, "What is your name?", NAMED), sample(ctx, "Greet."), roots(ctx)]), said(text("All three arrived."))),
  test_input_required_result_multi_round: async (ctx) => (await elicit(ctx, "Step 1: your name?", NAMED), await elicit(ctx, "Step 2: your colour?", strings("color")), said(text("Both steps are done."))),
  test_input_required_result_tampered_state: async (ctx) => (await elicit(ctx, "Please confirm.", { ok: { type: "boolean" } }), said(text("Confirmed."))),
  test_input_required_result_capabilities: async (ctx) => {
    const able = ctx.server.getClientCapabilities() ?? {};
    if (able.elicitation) await elicit(ctx, "Your name?", NAMED);
    if (able.sampling) await sample(ctx, "Greet.");
    return said(text("Asked for what the client can do."));
  },
};
const REGION = { region: { type: "string", "x-mcp-header": "Region" } };
const ARGUMENTS = { test_sampling: strings("prompt"), test_elicitation: strings("message"), test_x_mcp_header: REGION };
const SCHEMA = {
  $schema: "https://json-schema.org/draft/2020-12/schema",
  type: "object",
  $defs: { address: { $anchor: "addressDef", type: "object", properties: strings("street", "city") } },
  properties: { name: { type: "string" }, address: { $ref: "#/$defs/address" }, contactMethod: { enum: ["phone", "email"], type: "string" }, ...strings("phone", "email") },
  allOf: [{ anyOf: [{ required: ["phone"] }, { required: ["email"] }] }],
  if: { properties: { contactMethod: { const: "phone" } }, required: ["contactMethod"] },
  then: { required: ["phone"] },
  else: { required: ["email"] },
  additionalProperties: false,
};
const schema = (name) => (name === "json_schema_2020_12_tool" ? SCHEMA : { type: "object", properties: ARGUMENTS[name] ?? {} });
const listed = () => Object.keys(tools).map((name) => ({ name, description: `The tool ${name}.`, inputSchema: schema(name) }));
const user = (content) => ({ messages: [{ role: "user", content }] });
const prompts = {
  test_simple_prompt: () => user(text("This is a simple prompt for testing.")),
  test_prompt_with_arguments: ({ arg1, arg2 }) => user(text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`)),
  test_prompt_with_embedded_resource: ({ resourceUri }) => user(embedded(resourceUri)),
  test_prompt_with_image: () => user(image),
  test_input_required_result_prompt: async (_, ctx) => user(text(`The context is ${(await elicit(ctx, "What context?", strings("context"))).content?.context}.`)),
};
const PROMPTED = { test_prompt_with_arguments: ["arg1", "arg2"], test_prompt_with_embedded_resource: ["resourceUri"] };
const resources = {
  "test://static-text": { mimeType: "text/plain", text: "This is the content of the static text resource." },
  "test://static-binary": { mimeType: "image/png", blob: PIXEL },
  "test://watched-resource": { mimeType: "text/plain", text: "Watched." },
};

function build() {
  const changes = { listChanged: true };
  const capabilities = { tools: changes, prompts: changes, resources: { subscribe: true, ...changes }, logging: {}, completions: {} };
  const server = new Server({ name: "typescript-fixture", version: "1.0" }, { capabilities, enforceStrictCapabilities: true });
  const on = (shape, handle) => server.setRequestHandler(shape, (request, extra) => handle(request.params ?? {}, { server, extra, given: request.params?.arguments ?? {} }));
  on(types.ListToolsRequestSchema, () => ({ tools: listed() }));
  on(types.CallToolRequestSchema, ({ name }, ctx) => {
    if (!tools[name]) throw new types.McpError(types.ErrorCode.InvalidParams, `Unknown tool: ${name}`);
    return tools[name](ctx);
  });
  on(types.ListPromptsRequestSchema, () => ({ prompts: Object.keys(prompts).map((name) => ({ name, description: `The prompt ${name}.`, arguments: (PROMPTED[name] ?? []).map((one) => ({ name: one, required: true })) })) }));
  on(types.GetPromptRequestSchema, ({ name }, ctx) => prompts[name](ctx.given, ctx));
  on(types.ListResourcesRequestSchema, () => ({ resources: Object.keys(resources).map((uri) => ({ uri, name: uri, mimeType: resources[uri].mimeType })) }));
  on(types.ListResourceTemplatesRequestSchema, () => ({ resourceTemplates: [{ uriTemplate: "test://template/{id}/data", name: "template", mimeType: "application/json" }] }));
  on(types.ReadResourceRequestSchema, ({ uri }) => {
    const [, id] = /^test:\/\/template\/(.+)\/data$/.exec(uri) ?? [];
    if (id) return { contents: [{ uri, mimeType: "application/json", text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }) }] };
    if (!resources[uri]) throw new types.McpError(-32002, "Resource not found", { uri });
    return { contents: [{ uri, ...resources[uri] }] };
  });
  on(types.SubscribeRequestSchema, ({ uri }) => (state.subscribed.add(uri), {}));
  on(types.UnsubscribeRequestSchema, ({ uri }) => (state.subscribed.delete(uri), {}));
  on(types.SetLevelRequestSchema, () => ({}));
  on(types.CompleteRequestSchema, () => ({ completion: { values: [], total: 0, hasMore: false } }));
  return server;
}

const transports = new Map();
const port = Number(process.argv[2]);
const allowedHosts = [`localhost:${port}`, `127.0.0.1:${port}`];
createServer(async (request, response) => {
  const session = request.headers["mcp-session-id"];
  let transport = transports.get(session);
  if (session && !transport) return response.writeHead(404).end();
  if (!transport) {
    transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      enableDnsRebindingProtection: true,
      allowedHosts,
      allowedOrigins: allowedHosts.map((host) => `http://${host}`),
      onsessioninitialized: (id) => transports.set(id, transport),
      onsessionclosed: (id) => transports.delete(id),
    });
    await build().connect(transport);
  }
  await transport.handleRequest(request, response);
}).listen(port, "127.0.0.1");
