// The official requester for tasks of both eras, driving a tool behind a node. Run from the folder of node_modules:
// URL, ERA (legacy|modern) and TOOL come in as JSON in process.env.TRIAL; what happened goes out as JSON.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { createTaskSessionFromClient, resultFromTaskOutcome } from "@modelcontextprotocol/ext-tasks/client";

const { url, era, tool, quick, slow } = JSON.parse(process.env.TRIAL);
const capabilities = { extensions: { "io.modelcontextprotocol/tasks": {} } };
const info = { name: "ext-tasks", version: "1" };
const mode = era === "modern" ? { pin: "2026-07-28" } : "legacy";
const client = new Client(info, { capabilities: era === "modern" ? capabilities : {}, versionNegotiation: { mode } });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));

let id = 0;
async function dispatch(request, options) {
  const body = { jsonrpc: "2.0", id: ++id, ...request };
  const headers = {
    "content-type": "application/json",
    accept: "application/json, text/event-stream",
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": request.method,
    "mcp-name": request.params.taskId ?? request.params.name,
  };
  const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(body), signal: options?.signal });
  return await answer.json();
}

const framing = { protocolVersion: "2026-07-28", clientInfo: info, clientCapabilities: capabilities };
const raw = era === "modern" ? { rawDispatch: dispatch, v2RequestFraming: framing } : {};
const session = createTaskSessionFromClient(client, { endpointId: "node", ...raw });
const tools = (await client.listTools()).tools;
const taskSupport = tools.find((one) => one.name === tool)?.execution?.taskSupport;
const declaration = { name: tool, inputSchema: { type: "object" }, taskSupport };
const told = { capabilities: session.capabilities };

const done = await session.callTool(tool, quick, { declaration, task: { preference: "require" } });
told.kind = done.kind;
told.id = done.handle?.taskId;
told.result = resultFromTaskOutcome((await done.settle()).outcome);

const given_up = await session.callTool(tool, slow, { declaration, task: { preference: "require" } });
await given_up.cancel();
const { outcome } = await given_up.settle();
told.cancelled = outcome.kind ?? outcome.status;
if (era === "legacy") told.listed = (await session.listTasks()).tasks.map((task) => [task.taskId, task.status]);
await session.close();
await client.close();
console.log(JSON.stringify(told));
