// A client of the TypeScript SDK, of either line. Run from the folder of node_modules: what to do comes in as JSON in
// process.env.TRIAL (sdk, era, url), what was found goes out as JSON.
const { sdk, era, url } = JSON.parse(process.env.TRIAL);
const info = { name: `library ${sdk}`, version: "1" };
const mode = era === "modern" ? { pin: "2026-07-28" } : "legacy";

async function connected(capabilities) {
  const options = { capabilities };
  let transport, client;
  if (sdk === "v1") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");
    client = new Client(info, options);
    if (capabilities.elicitation) client.setRequestHandler(ElicitRequestSchema, answer);
    transport = new StreamableHTTPClientTransport(new URL(url));
  } else {
    const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
    client = new Client(info, { ...options, versionNegotiation: { mode } });
    if (capabilities.elicitation) client.setRequestHandler("elicitation/create", answer);
    transport = new StreamableHTTPClientTransport(new URL(url));
  }
  await client.connect(transport);
  return client;
}

const answer = () => ({ action: "accept", content: { name: "Ada of the tests" } });
const text = (result) => result.content.filter((block) => block.type === "text").map((block) => block.text).join(" ");

const client = await connected({ elicitation: { form: {} } });
const heard = [];
const onprogress = ({ progress, total }) => heard.push([progress, total]);
async function called(name, args = {}, options = {}) {
  const params = { name, arguments: args };
  return text(sdk === "v1" ? await client.callTool(params, undefined, options) : await client.callTool(params, options));
}
const tools = (await client.listTools()).tools.map((tool) => tool.name);
const echo = await called("everything__echo", { message: "through" });
const steps = await called("everything__trigger-long-running-operation", { duration: 0.3, steps: 3 }, { onprogress });
const question = await called("everything__trigger-elicitation-request");
const refused = await called("memory__delete_entities", { entityNames: ["Ada"] });
await client.close();
console.log(JSON.stringify({ tools, echo, steps, heard, question, refused }));
process.exit(0);
