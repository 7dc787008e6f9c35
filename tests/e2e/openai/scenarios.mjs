// What programs do with the official client, one scenario a run:
//   node scenarios.mjs SCENARIO BASE_URL
// prints one JSON object; test_openai_client.py says what must be in it.
import OpenAI from "openai";

const [scenario, baseURL] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: process.env.OPENAI_API_KEY ?? "unused", maxRetries: 0 });
const messages = [{ role: "user", content: "Tell me of the sea." }];
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
};

console.log(JSON.stringify(await scenarios[scenario]()));
