// What programs do with Ollama's client, one scenario a run:
//   node ollama.mjs SCENARIO HOST FILE
// prints one JSON object; test_sdks.py says what must be in it. FILE is what the tool reads.
import { readFile } from "node:fs/promises";
import { Ollama } from "ollama";

const [scenario, host, file] = process.argv.slice(2);
const client = new Ollama({ host });
const model = "scripted";
const question = { role: "user", content: "What does notes.txt say?" };
const tool = {
  type: "function",
  function: {
    name: "read_file",
    description: "Reads the content of a file.",
    parameters: {
      type: "object",
      properties: { path: { type: "string" }, line: { type: "integer" } },
      required: ["path"],
    },
  },
};

async function result(message) {
  return { role: "tool", tool_name: message.tool_calls[0].function.name, content: await readFile(file, "utf8") };
}

// Gathers a stream as programs do.
async function gathered(stream) {
  const message = { role: "assistant", content: "", thinking: "", tool_calls: [] };
  const parts = [];
  for await (const part of stream) {
    parts.push(part);
    message.content += part.message.content;
    message.thinking += part.message.thinking ?? "";
    message.tool_calls.push(...(part.message.tool_calls ?? []));
  }
  return { message, last: parts.at(-1), parts: parts.length };
}

async function thrown(promise) {
  try {
    return { result: await promise };
  } catch (error) {
    return { class: error.name, status: error.status_code, message: error.message };
  }
}

const scenarios = {
  async loop() {
    const messages = [question];
    const call = await client.chat({ model, messages, tools: [tool], think: true });
    messages.push(call.message, await result(call.message));
    return { call, answer: await client.chat({ model, messages, tools: [tool] }) };
  },

  async stream() {
    const messages = [question];
    const call = await gathered(await client.chat({ model, messages, tools: [tool], think: true, stream: true }));
    messages.push(call.message, await result(call.message));
    return { call, answer: await gathered(await client.chat({ model, messages, tools: [tool], stream: true })) };
  },

  async generate() {
    const whole = await client.generate({ model, prompt: "Hello", system: "Be brief.", keep_alive: "5m", options: { temperature: 0 } });
    let streamed = "";
    for await (const part of await client.generate({ model, prompt: "Hello", system: "Be brief.", stream: true })) streamed += part.response;
    const schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false };
    return { whole, streamed, structured: (await client.generate({ model: "tiny-chat", prompt: "Ok?", format: schema })).response };
  },

  async abort() {
    // At temperature 0 this model's reply has no end.
    const options = { num_predict: 4000, temperature: 0 };
    const stream = await client.generate({ model: "tiny-chat", prompt: "Hello", stream: true, options });
    try {
      for await (const part of stream) if (part.response) stream.abort();
    } catch (error) {
      return { class: error.name };
    }
    return { class: null };
  },

  async embed() {
    const many = await client.embed({ model: "tiny-embed", input: ["one text", "another"], truncate: true });
    const one = await client.embed({ model: "tiny-embed", input: "one text", dimensions: 8 });
    return { many, one, old: await client.embeddings({ model: "tiny-embed", prompt: "one text" }) };
  },

  async models() {
    const { models } = await client.list();
    await client.chat({ model, messages: [] }); // loads it
    return { models, shown: await client.show({ model }), running: (await client.ps()).models, version: await client.version() };
  },

  async errors() {
    return {
      unknown: await thrown(client.show({ model: "nothing" })),
      noText: await thrown(client.embed({ model, input: "a" })),
      tooLong: await thrown(client.chat({ model, messages: [{ role: "user", content: "far too long ".repeat(100000) }] })),
      tooLongStream: await thrown(
        client.chat({ model, stream: true, messages: [{ role: "user", content: "far too long ".repeat(100000) }] }).then(gathered)),
    };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
process.exit(0); // a stream that was left keeps the program alive
