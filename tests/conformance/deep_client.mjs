// A client of the TypeScript SDK, of either line. Run from the folder of node_modules: what to do comes in as JSON in
// process.env.TRIAL (sdk, era, url or command, tools), what was listed and answered goes out as JSON.
const { sdk, era, url, command, tools } = JSON.parse(process.env.TRIAL);
const info = { name: `deep ${sdk}`, version: "1" };

async function parts() {
  if (sdk === "v1") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
    return { client: new Client(info), StreamableHTTPClientTransport, StdioClientTransport };
  }
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
  const mode = era === "modern" ? { pin: "2026-07-28" } : "legacy";
  return { client: new Client(info, { versionNegotiation: { mode } }), StreamableHTTPClientTransport, StdioClientTransport };
}

const { client, StreamableHTTPClientTransport, StdioClientTransport } = await parts();
const transport = command
  ? new StdioClientTransport({ command: command[0], args: command.slice(1), env: process.env })
  : new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);
const listed = (await client.listTools()).tools.map((tool) => tool.name);
const answers = {};
for (const name of tools) {
  answers[name] = (await client.callTool({ name, arguments: { text: `through ${sdk}` } })).structuredContent;
}
await client.close();
console.log(JSON.stringify({ listed, answers }));
process.exit(0);
