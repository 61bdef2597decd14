// An MCP server on stdio with one tool, `get`, which asks for a URL as Node.js programs do: fetch, or http(s).get.
import http from 'node:http';
import https from 'node:https';
import readline from 'node:readline';

const ways = {
  fetch: async (url) => (await fetch(url)).text(),
  get: (url) => new Promise((resolve, reject) => {
    (url.startsWith('https') ? https : http).get(url, (response) => {
      let text = '';
      response.on('data', (data) => { text += data; });
      response.on('end', () => resolve(text));
    }).on('error', reject);
  }),
};

const answers = {
  initialize: () => ({ protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 'fetching', version: '1' } }),
  ping: () => ({}),
  'tools/list': () => ({ tools: [{ name: 'get', inputSchema: { type: 'object' } }] }),
  'tools/call': async ({ arguments: { how, url } }) => {
    try {
      return { content: [{ type: 'text', text: await ways[how](url) }] };
    } catch (error) {
      return { isError: true, content: [{ type: 'text', text: `${error} ${error.cause ?? ''}` }] };
    }
  },
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const message = JSON.parse(line);
  if (message.id === undefined) continue;
  const answer = answers[message.method];
  const said = answer
    ? { result: await answer(message.params ?? {}) }
    : { error: { code: -32601, message: 'Method not found' } };
  process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', id: message.id, ...said })}\n`);
}
