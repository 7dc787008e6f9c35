// What programs do with the official client, one scenario a run:
//   node scenarios.mjs SCENARIO BASE_URL
// prints one JSON object; test_openai_client.py says what must be in it.
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";

const [scenario, baseURL] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: process.env.OPENAI_API_KEY ?? "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "Tell me of the sea." }];
const response = { model: "tiny", temperature: 0, max_output_tokens: 8 };
const greedy = { model: "tiny", temperature: 0, max_tokens: 12 };

// What an SDK's error is, for a program that catches it.
async function thrown(promise) {
  try {
    return { result: await promise };
  } catch (error) {
    return {
      class: error.constructor.name,
      isApiError: error instanceof OpenAI.APIError,
      status: error.status,
      code: error.code,
      param: error.param,
      type: error.type,
      message: error.message,
      requestId: error.requestID,
    };
  }
}

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const scenarios = {
  async images() {
    const prompt = "a red circle";
    const whole = await client.images.generate({ model: "tiny-picture", prompt, n: 2, size: "512x512", response_format: "b64_json" });
    const stream = await client.images.generate({ model: "gpt-image-1", prompt, stream: true, partial_images: 2 });
    const refused = await thrown(client.images.generate({ model: "tiny-picture", prompt: "a red circl" }));
    return { whole, events: await collect(stream), refused };
  },
  async embeddings() {
    const input = ["one text", "another"];
    const decoded = await client.embeddings.create({ model: "tiny-embed", input });
    const plain = await client.embeddings.create({ model: "tiny-embed", input, encoding_format: "float", dimensions: 8 });
    return { decoded, plain, empty: await thrown(client.embeddings.create({ model: "tiny-embed", input: "" })) };
  },
  async chat() {
    const { data, response, request_id } = await client.chat.completions.create({ ...greedy, messages }).withResponse();
    return { data, status: response.status, requestId: request_id };
  },

  async chat_stream() {
    const request = { ...greedy, messages, stream: true, stream_options: { include_usage: true } };
    const chunks = await collect(await client.chat.completions.create(request));
    const whole = await client.chat.completions.create({ ...greedy, messages });
    return { chunks, whole };
  },

  // The helper that gathers a stream into the answer it stands for.
  async chat_stream_helper() {
    const runner = client.chat.completions.stream({ ...greedy, messages, stream_options: { include_usage: true } });
    const deltas = [];
    runner.on("content", (delta) => deltas.push(delta));
    return { final: await runner.finalChatCompletion(), deltas };
  },

  async completions() {
    const whole = await client.completions.create({ ...greedy, prompt: "Once upon a time" });
    const chunks = await collect(await client.completions.create({ ...greedy, prompt: "Once upon a time", stream: true }));
    return { whole, chunks };
  },

  async choices() {
    const whole = await client.chat.completions.create({ ...greedy, messages, n: 3 });
    const runner = client.chat.completions.stream({ ...greedy, messages, n: 3 });
    const prompts = await client.completions.create({ ...greedy, prompt: ["Once", "The sea"], n: 2, echo: true });
    return {
      whole,
      streamed: await runner.finalChatCompletion(),
      prompts,
      refused: await thrown(client.chat.completions.create({ ...greedy, messages, n: 100 })),
    };
  },

  async logprobs() {
    const wanted = { ...greedy, messages, logprobs: true, top_logprobs: 3 };
    const whole = await client.chat.completions.create(wanted);
    const runner = client.chat.completions.stream(wanted);
    const text = await client.completions.create({ ...greedy, prompt: "Once upon a time", logprobs: 3 });
    return {
      whole,
      streamed: await runner.finalChatCompletion(),
      text,
      refused: await thrown(client.chat.completions.create({ ...greedy, messages, top_logprobs: 3 })),
    };
  },

  async models() {
    const listed = await collect(await client.models.list());
    return { listed, one: await client.models.retrieve(listed[0].id), unknown: await thrown(client.models.retrieve("nobody")) };
  },

  async errors() {
    return {
      wrongType: await thrown(client.chat.completions.create({ ...greedy, messages, temperature: "hot" })),
      noMessages: await thrown(client.chat.completions.create({ ...greedy, messages: [] })),
      unknownModel: await thrown(client.chat.completions.create({ ...greedy, messages, model: "gpt-nobody-has" })),
      tooLong: await thrown(client.completions.create({ ...greedy, prompt: "word ".repeat(20000) })),
      unknownPath: await thrown(client.post("/nowhere", { body: {} })),
    };
  },

  // Leaves in the middle of a stream; the daemon's metrics say what became of the generation.
  async abort() {
    const endless = { ...greedy, messages, max_tokens: 4000, stream: true, uma: { ignore_eos: true } };
    const stream = await client.chat.completions.create(endless);
    let received = 0;
    for await (const chunk of stream) {
      received += chunk.choices.length;
      if (received === 3) break; // which aborts the request
    }
    return { received, isAborted: stream.controller.signal.aborted };
  },

  async timeout() {
    const endless = { ...greedy, messages, max_tokens: 4000, uma: { ignore_eos: true } };
    return await thrown(client.chat.completions.create(endless, { timeout: 300 }));
  },

  // Three turns of which only the new input is sent.
  async responses() {
    const turns = [];
    for (const input of ["My name is Ada.", "I live by the sea.", "What is my name?"]) {
      turns.push(await client.responses.create({ ...response, input, previous_response_id: turns.at(-1)?.id }));
    }
    const last = turns.at(-1);
    const fetched = await client.responses.retrieve(last.id);
    const items = await collect(await client.responses.inputItems.list(last.id, { order: "asc" }));
    await client.responses.delete(last.id);
    return { turns, fetched, items, deleted: await thrown(client.responses.retrieve(last.id)) };
  },

  // A connection with incremental input, of which nothing is stored.
  async responses_socket() {
    const socket = new ResponsesWS(client);
    const turns = [];
    const inputs = ["Tell me of the sea.", "And of the wind.", "And of the sand."];
    const instructions = "You write as the sea speaks, in long waves of words. ".repeat(10);
    const send = (fields) => socket.send({ type: "response.create", ...response, instructions, store: false, ...fields });
    send({ input: inputs.shift() });
    let error;
    const types = [];
    for await (const event of socket) {
      if (event.type === "error") {
        error = { message: event.error.message, code: event.error.error?.error?.code };
        break;
      }
      if (event.type !== "message") continue;
      types.push(event.message.type);
      if (event.message.type !== "response.completed" && event.message.type !== "response.incomplete") continue;
      turns.push(event.message.response);
      const unknown = inputs.length === 0 ? { previous_response_id: `resp_${"0".repeat(48)}` } : {};
      send({ input: inputs.shift() ?? "More", previous_response_id: turns.at(-1).id, ...unknown });
    }
    socket.close();
    return { turns, error, types };
  },

  async responses_stream() {
    const events = await collect(await client.responses.create({ ...response, input: "Tell me of the sea.", stream: true }));
    return { events, whole: await client.responses.retrieve(events.at(-1).response.id) };
  },

  // A tool is called, its result sent, and only that is new: whole, by the helper that gathers a stream, and by a client that
  // keeps the past itself.
  async responses_tools() {
    const parameters = {
      type: "object",
      properties: { city: { enum: ["Paris", "Rome"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
      required: ["city", "days"],
      additionalProperties: false,
    };
    const tools = [{ type: "function", name: "weather", description: "The weather of some days", parameters, strict: true }];
    const input = [{ role: "user", content: "Weather in Rome?" }];
    const request = { ...response, max_output_tokens: 200, tools, parallel_tool_calls: false };
    const named = { ...request, input, tool_choice: { type: "function", name: "weather" } };
    const output = (from) => {
      const call = from.output.find((item) => item.type === "function_call");
      return { type: "function_call_output", call_id: call.call_id, output: '{"sky":"clear"}' };
    };
    const one = await client.responses.create(named);
    const two = await client.responses.create({ ...request, input: [output(one)], previous_response_id: one.id });
    const runner = client.responses.stream(named);
    const events = [];
    runner.on("event", (event) => events.push(event.type));
    const streamed = await runner.finalResponse();
    const alone = await client.responses.parse({ ...named, store: false });
    const past = [...input, ...alone.output, output(alone)];
    return {
      one,
      two,
      streamed,
      events,
      fetched: await client.responses.retrieve(one.id),
      items: await collect(await client.responses.inputItems.list(two.id, { order: "asc" })),
      alone,
      aloneAfter: await client.responses.create({ ...request, input: past, store: false }),
      refused: await thrown(client.responses.create({ ...request, input, tools: [{ type: "telepathy", name: "mind" }] })),
    };
  },

  async responses_structured() {
    const schema = {
      type: "object",
      properties: { city: { enum: ["Paris", "Rome"] }, people: { type: "integer", minimum: 1, maximum: 99 } },
      required: ["city", "people"],
      additionalProperties: false,
    };
    const format = { type: "json_schema", name: "place", strict: true, schema };
    const request = { ...response, temperature: 1, seed: 1, max_output_tokens: 200, input: "Tell me of a place.", text: { format } };
    const parsed = await client.responses.parse(request);
    const runner = client.responses.stream(request);
    return { parsed: parsed.output[0].content[0].parsed, streamed: JSON.parse((await runner.finalResponse()).output_text) };
  },

  // An earlier response is continued twice, at the same time.
  async responses_fork() {
    const first = await client.responses.create({ ...response, input: "My name is Ada." });
    const then = (input) => client.responses.create({ ...response, input, previous_response_id: first.id });
    return { first, both: await Promise.all([then("I live by the sea."), then("I live in the hills.")]) };
  },

  async conversations() {
    const made = await client.conversations.create({
      items: [{ type: "message", role: "user", content: "My name is Ada." }],
      metadata: { topic: "names" },
    });
    const reply = await client.responses.create({ ...response, input: "What is my name?", conversation: made.id });
    const items = await collect(await client.conversations.items.list(made.id, { order: "asc" }));
    const updated = await client.conversations.update(made.id, { metadata: { topic: "seas" } });
    const removed = await client.conversations.delete(made.id);
    return { made, reply, items, updated, removed, gone: await thrown(client.conversations.retrieve(made.id)) };
  },

  async structured() {
    const schema = {
      type: "object",
      properties: {
        city: { enum: ["Paris", "Rome"] },
        people: { type: "integer", minimum: 1, maximum: 99 },
        tags: { type: "array", items: { type: "string", maxLength: 4 }, maxItems: 2 },
      },
      required: ["city", "people", "tags"],
      additionalProperties: false,
    };
    const format = { type: "json_schema", json_schema: { name: "place", strict: true, schema } };
    const request = { model: "tiny", temperature: 1, max_tokens: 200, messages, response_format: format };
    const answers = [];
    for (let seed = 1; seed <= 5; ++seed) answers.push(await client.chat.completions.create({ ...request, seed }));
    const runner = client.chat.completions.stream({ ...request, seed: 1 });
    const unserved = { ...format, json_schema: { name: "x", schema: { type: "array", uniqueItems: 1 } } };
    return {
      answers,
      streamed: await runner.finalContent(),
      refused: await thrown(client.chat.completions.create({ ...request, response_format: unserved })),
    };
  },

  async tools() {
    const parameters = {
      type: "object",
      properties: { city: { enum: ["Paris", "Rome"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
      required: ["city", "days"],
      additionalProperties: false,
    };
    const tools = [
      { type: "function", function: { name: "weather", description: "The weather of some days", parameters } },
      { type: "function", function: { name: "now", parameters: { type: "object", properties: {}, additionalProperties: false } } },
    ];
    const request = { model: "tiny", temperature: 1, seed: 1, max_tokens: 200, messages, tools, parallel_tool_calls: false };
    const named = { ...request, tool_choice: { type: "function", function: { name: "weather" } } };
    const one = await client.chat.completions.create(named);
    const runner = client.chat.completions.stream(named);
    const call = one.choices[0].message.tool_calls[0];
    // The result goes back, and the model says something about it.
    const after = await client.chat.completions.create({
      ...request,
      tool_choice: "none",
      messages: [...messages, one.choices[0].message, { role: "tool", tool_call_id: call.id, content: '{"sky":"clear"}' }],
    });
    return {
      one,
      streamed: await runner.finalChatCompletion(),
      required: await client.chat.completions.create({ ...request, tool_choice: "required" }),
      after,
      refused: await thrown(client.chat.completions.create({ ...request, tool_choice: { type: "function", function: { name: "nobody" } } })),
    };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
