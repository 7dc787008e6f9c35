// The requests of the page to umad, one function each.
import { readEvents, readJsonLines, type SseEvent } from './sse.ts';
import type {
  ConfigValue, InputItem, ItemPage, KeyInfo, MetadataChanges, ModelList, NewKey, Receipt, ResponseObject, SamplingDefaults, Session,
  SessionDetail, SessionOptions, SessionPage,
} from './types.ts';

const kNameBytesMax = 128;

export class ApiError extends Error {
  constructor(readonly status: number, readonly code: string, message: string) {
    super(message);
  }
}

// Whether umad knows no such request, as an older version may not.
export const isUnserved = (error: unknown) =>
  error instanceof ApiError && (error.code === 'E_PROTO_004' || error.status === 405 || error.status === 501);

// Whether what was asked for does not exist.
export const isUnknown = (error: unknown) => error instanceof ApiError && error.status === 404;

export const isAborted = (error: unknown) => error instanceof DOMException && error.name === 'AbortError';

export const messageOf = (error: unknown): string => {
  if (error instanceof ApiError) return error.message;
  if (error instanceof TypeError) return 'umad does not answer.';
  return error instanceof Error ? error.message : String(error);
};

export interface PullLine {
  error?: string;  // What is done is in ModelList.
}

export interface PictureOptions {
  prompt: string;
  negative_prompt?: string;
  model: string;
  n?: number;
  size?: string;
  steps?: number;
  guidance?: number;
  seed?: number;
  partial_images?: number;
}

export interface PictureEvent {
  type: 'image_generation.partial_image' | 'image_generation.completed' | 'error';
  b64_json?: string;
  partial_image_index?: number;
  size?: string;
  uma?: { seed: number };
  error?: { message: string };
}

interface Call {
  method?: string;
  body?: unknown;  // A Blob as it is, anything else as JSON.
  signal?: AbortSignal | undefined;
  etag?: string | undefined;
}

const kNotModified = 304;

async function errorOf(answer: Response): Promise<ApiError> {
  const text = await answer.text().catch(() => '');
  try {
    const error = JSON.parse(text).error;
    if (typeof error === 'string') return new ApiError(answer.status, '', error);
    if (typeof error?.message === 'string') return new ApiError(answer.status, String(error.code ?? ''), error.message);
  } catch {
    // Not JSON: a proxy answered.
  }
  return new ApiError(answer.status, '', `umad answered with status ${answer.status}.`);
}

// Sends requests to the server at `base`, an absolute or relative address that ends with a slash, with the key that
// `keyOf` returns. `warn` gets what umad served otherwise than asked for.
export class Api {
  constructor(private readonly base = '', private readonly keyOf: () => string = () => '',
              private readonly warn: (text: string) => void = () => {}) {}

  // --- Models

  listModels = () => this.known<ModelList>('v1/models');
  loadModel = (model: string, signal?: AbortSignal) => this.json('models/load', { body: { model }, signal });
  unloadModel = (model: string) => this.json('models/unload', { body: { model } });
  deleteModel = (model: string) => this.send('api/delete', { method: 'DELETE', body: { model } });

  // The defaults of sampling from the model's card, file or family.
  samplingDefaults = async (model: string): Promise<SamplingDefaults> =>
    (await this.json<{ sampling: SamplingDefaults }>(`props?model=${encodeURIComponent(model)}`)).sampling;
  // The model's card in models.yaml.
  getCard = (model: string) => this.json<{ text: string }>(`v1/models/${encodeURIComponent(model)}/card`);
  // `was`: the card that is to be replaced.
  setCard = (model: string, text: string, was: string) =>
    this.json<{ text: string }>(`v1/models/${encodeURIComponent(model)}/card`, { method: 'PUT', body: { text, was } });

  async *pullModel(source: string, signal: AbortSignal): AsyncGenerator<PullLine> {
    const answer = await this.send('api/pull', { body: { model: source, stream: true }, signal });
    for await (const line of readJsonLines(answer.body!)) yield line as PullLine;
  }

  // --- Sessions

  // The last used first, from the one behind `after`, which is `next` of the page before.
  listSessions = (after: string, limit: number): Promise<SessionPage> => {
    const path = `v1/sessions?order=desc&limit=${limit}&after=${encodeURIComponent(after)}&q=`;
    return after === '' ? this.known(path) : this.json(path);
  };
  // Those with these words.
  searchSessions = (after: string, query: string) =>
    this.json<SessionPage>(`v1/sessions?order=desc&limit=1000&after=${encodeURIComponent(after)}&q=${encodeURIComponent(query)}`);
  getSession = (id: string, signal?: AbortSignal) => this.json<SessionDetail>(`v1/sessions/${id}`, { signal });
  createSession = (options: SessionOptions) => this.json<Session>('v1/sessions', { body: { mode: 'chat', ...options } });
  // The fork ends behind `turn`; -1: it has the system prompt alone; undefined: it has everything.
  forkSession = (id: string, turn?: number, metadata?: MetadataChanges) =>
    this.json<Session>(`v1/sessions/${id}/fork`, { body: { turn, metadata } });
  // Keeps the turns 0 to `turn`.
  rewindSession = (id: string, turn: number) => this.json<Session>(`v1/sessions/${id}/rewind`, { body: { turn } });
  deleteSession = (id: string) => this.json(`v1/sessions/${id}`, { method: 'DELETE' });
  exportSession = async (id: string) => (await this.send(`v1/sessions/${id}/export`)).blob();
  // Without a name the session has that of the file. A name that is taken is answered with 409.
  importSession = (file: Blob, name = '') =>
    this.json<Session>(`v1/sessions/import?name=${encodeURIComponent(name)}`, { method: 'POST', body: file });
  // An empty name removes it.
  renameSession = (id: string, name: string) =>
    this.json<Session>(`v1/sessions/${id}`, { method: 'PATCH', body: { name: clipped(name, kNameBytesMax) } });
  setMetadata = (id: string, metadata: MetadataChanges) =>
    this.json<Session>(`v1/sessions/${id}`, { method: 'PATCH', body: { metadata } });

  listReceipts = async (id: string) => (await this.json<{ data: Receipt[] }>(`v1/sessions/${id}/receipts`)).data;

  listItems = (id: string, after = '', limit = 100, signal?: AbortSignal) =>
    this.json<ItemPage>(`v1/conversations/conv_${id}/items?order=desc&limit=${limit}${after ? `&after=${after}` : ''}`, { signal });

  // --- Replies

  // Appends an input, which the next reply answers.
  appendItems = (id: string, items: InputItem[]) => this.json<ItemPage>(`v1/conversations/conv_${id}/items`, { body: { items } });
  // Only the last item can be deleted.
  deleteItem = (id: string, item: string) => this.json(`v1/conversations/conv_${id}/items/${item}`, { method: 'DELETE' });

  // The events of a reply to the input that waits in a session. The reply goes on if nobody reads it any more. `options` are
  // further fields of the request.
  async *respond(id: string, options: Record<string, unknown>, signal: AbortSignal): AsyncGenerator<SseEvent> {
    const body = { background: true, ...options, conversation: `conv_${id}`, stream: true };
    const answer = await this.send('v1/responses', { body, signal });
    yield* readEvents(answer.body!);
  }
  cancelResponse = (id: string) => this.json<ResponseObject>(`v1/responses/${id}/cancel`, { method: 'POST' });

  // The events of a reply behind the one with the number `after`; -1: all.
  async *attach(responseId: string, after: number, signal: AbortSignal): AsyncGenerator<SseEvent> {
    const from = after < 0 ? '' : `&starting_after=${after}`;
    const answer = await this.send(`v1/responses/${responseId}?stream=true${from}`, { signal });
    yield* readEvents(answer.body!);
  }

  countTokens = async (model: string, text: string, signal?: AbortSignal) =>
    (await this.json<{ tokens: unknown[] }>('tokenize', { body: { model, content: text }, signal })).tokens.length;

  async *drawPictures(options: PictureOptions, signal: AbortSignal): AsyncGenerator<PictureEvent> {
    const answer = await this.send('v1/images/generations', { body: { ...options, stream: true }, signal });
    for await (const event of readEvents(answer.body!)) yield JSON.parse(event.data) as PictureEvent;
  }

  // --- Watching

  traceFile = async (seconds: number) => (await this.send(`v1/trace?seconds=${seconds}`)).blob();
  getVersion = async () => (await this.json<{ version: string }>('api/version')).version.replace(/^.*-uma\./, '');

  async *watch(signal: AbortSignal): AsyncGenerator<SseEvent> {
    const answer = await this.send('v1/events', { signal });
    yield* readEvents(answer.body!);
  }

  // --- Managing

  listKeys = async () => (await this.json<{ data: KeyInfo[] }>('v1/keys')).data;
  createKey = (options: NewKey) => this.json<{ key: string; line: string }>('v1/keys', { body: options });
  deleteKey = (name: string) => this.json(`v1/keys/${encodeURIComponent(name)}`, { method: 'DELETE' });
  getConfig = async () => (await this.json<{ data: ConfigValue[] }>('v1/config')).data;

  // ---

  private fetch(path: string, { method, body, signal, etag }: Call = {}): Promise<Response> {
    const headers: Record<string, string> = {};
    if (etag) headers['If-None-Match'] = etag;
    const key = this.keyOf();
    if (key) headers['Authorization'] = `Bearer ${key}`;
    const isFile = body instanceof Blob;
    if (body !== undefined) headers['Content-Type'] = isFile ? 'application/octet-stream' : 'application/json';
    return fetch(this.base + path, {
      method: method ?? (body === undefined ? 'GET' : 'POST'),
      headers,
      body: body === undefined ? null : isFile ? body : JSON.stringify(body),
      signal: signal ?? null,
      credentials: 'same-origin',
      redirect: 'error',
      cache: 'no-store',
    });
  }

  private async send(path: string, call?: Call): Promise<Response> {
    const answer = await this.fetch(path, call);
    if (!answer.ok && answer.status !== kNotModified) throw await errorOf(answer);
    const warning = answer.headers.get('x-uma-warning');
    if (warning) this.warn(warning);
    return answer;
  }

  // Reads what is read again and again: umad sends it only if it has changed.
  private known = async <T>(path: string): Promise<T> => {
    const key = this.keyOf();
    const read = this.read.get(path);
    const answer = await this.send(path, { etag: read?.key === key ? read.etag : undefined });
    if (answer.status === kNotModified && read) return read.value as T;
    const value = await answer.json();
    this.read.set(path, { key, etag: answer.headers.get('etag') ?? '', value });
    return value;
  };
  private readonly read = new Map<string, { key: string; etag: string; value: unknown }>();

  private json = async <T = unknown>(path: string, call?: Call): Promise<T> => (await this.send(path, call)).json();
}

// The beginning of a text, of at most this many UTF-8 bytes.
export function clipped(text: string, bytesMax: number): string {
  const encoded = new TextEncoder().encode(text);
  return encoded.length <= bytesMax ? text : new TextDecoder().decode(encoded.slice(0, bytesMax)).replace(/\ufffd+$/, '');
}
