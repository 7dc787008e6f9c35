// What programs do with Anthropic's client, one scenario a run:
//   node anthropic.mjs SCENARIO BASE_URL FILE
// prints one JSON object; test_sdks.py says what must be in it. FILE is what the tool reads.
import { readFile } from "node:fs/promises";
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";

const [scenario, baseURL, file] = process.argv.slice(2);
const client = new Anthropic({ baseURL, apiKey: "unused", maxRetries: 0 });
const model = "claude-sonnet-5";
const system = [{ type: "text", text: "You help with files. Read before you answer.\n".repeat(100), cache_control: { type: "ephemeral" } }];
const question = { role: "user", content: "What does notes.txt say?" };
const input_schema = {
  type: "object",
  properties: { path: { type: "string" }, line: { type: "integer" } },
  required: ["path"],
  additionalProperties: false,
};
const tool = { name: "read_file", description: "Reads the content of a file.", input_schema };
const request = { model, max_tokens: 1000, system, tools: [tool], messages: [question] };
const read = () => readFile(file, "utf8");

// A client whose requests are added to `requests`.
function recorder(requests) {
  const send = (url, init) => (requests.push(JSON.parse(init.body)), fetch(url, init));
  return new Anthropic({ baseURL, apiKey: "unused", maxRetries: 0, fetch: send });
}

// Answers every call of a message.
async function results(message) {
  const calls = message.content.filter((block) => block.type === "tool_use");
  const content = calls.map(async (call) => ({ type: "tool_result", tool_use_id: call.id, content: await read() }));
  return { role: "user", content: await Promise.all(content) };
}

// What an SDK's error is, for a program that catches it.
async function thrown(promise) {
  try {
    return { result: await promise };
  } catch (error) {
    return { class: error.constructor.name, status: error.status, type: error.type, message: error.message, requestID: error.requestID };
  }
}

const scenarios = {
  async loop() {
    const call = await client.messages.create(request);
    const messages = [question, { role: "assistant", content: call.content }, await results(call)];
    return { call, answer: await client.messages.create({ ...request, messages }) };
  },

  async stream() {
    const turns = [];
    const messages = [question];
    for (let turn = 0; turn < 2; ++turn) {
      const seen = { texts: [], json: "", thoughts: "", signature: "", events: [] };
      const stream = client.messages.stream({ ...request, messages, thinking: { type: "enabled", budget_tokens: 1024 } });
      stream.on("text", (text) => seen.texts.push(text));
      stream.on("inputJson", (part) => (seen.json += part));
      stream.on("thinking", (part) => (seen.thoughts += part));
      stream.on("signature", (signature) => (seen.signature = signature));
      stream.on("streamEvent", (event) => seen.events.push(event.type));
      seen.message = await stream.finalMessage();
      turns.push(seen);
      messages.push({ role: "assistant", content: seen.message.content });
      if (turn === 0) messages.push(await results(seen.message));
    }
    return turns;
  },

  // The client's own loop.
  async runner() {
    let runs = 0;
    const requests = [];
    const recording = recorder(requests);
    const runnable = betaTool({
      name: tool.name,
      description: tool.description,
      inputSchema: input_schema,
      run: async () => (++runs, read()),
    });
    const message = await recording.beta.messages.toolRunner({ ...request, tools: [runnable] });
    return { message, runs, requests };
  },

  // A conversation that the server holds, whole or as streams; `requests` has what was sent of it.
  async thread() {
    const requests = [];
    const recording = recorder(requests);
    const thread = recording.beta.messages.thread({ ...request, messages: undefined });
    const call = await thread.send(question);
    const answer = await thread.stream(await results(call)).finalMessage();
    const more = await thread.send({ role: "user", content: "And now?" }, { max_tokens: 5 });
    const fork = thread.fork();
    const beside = await fork.send({ role: "user", content: "Or this?" });
    return { turns: [call, answer, more, beside], requests, messages: thread.messages.length };
  },

  // What is lost is sent again, as the client does it by default.
  async lost() {
    const thread = client.beta.messages.thread({ ...request, messages: undefined });
    const first = await thread.send(question);
    await fetch(`${baseURL}/v1/responses/${first.id.replace("msg_", "resp_")}`, { method: "DELETE" });
    const answer = await thread.send(await results(first));
    return { first, answer };
  },

  async count() {
    const counted = await client.messages.countTokens({ model, system, tools: [tool], messages: [question] });
    const { usage } = await client.messages.create(request);
    return { counted, usage };
  },

  async models() {
    const listed = [];
    for await (const one of client.models.list()) listed.push(one);
    return { listed, one: await client.models.retrieve(listed[0].id) };
  },

  async abort() {
    const messages = [{ role: "user", content: "Hello" }];
    // At temperature 0 this model's reply has no end.
    const stream = await client.messages.create({ model: "tiny-chat", max_tokens: 4000, temperature: 0, messages, stream: true });
    for await (const event of stream) if (event.type === "content_block_delta") stream.controller.abort();
    return { isAborted: stream.controller.signal.aborted };
  },

  async errors() {
    const tooLong = { ...request, messages: [{ role: "user", content: "far too long ".repeat(50000) }] };
    return {
      noMessages: await thrown(client.messages.create({ ...request, messages: [] })),
      badTool: await thrown(client.messages.create({ ...request, tools: [{ name: "a" }] })),
      tooLong: await thrown(client.messages.create(tooLong)),
      tooLongStream: await thrown(client.messages.stream(tooLong).finalMessage()),
    };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
