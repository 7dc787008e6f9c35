// The JSON objects of umad's HTTP API, as far as the page uses them (docs/protocol), and the page's own values.

export type Tier = 'hot' | 'warm' | 'cold' | 'shared' | 'none';

export interface Session {
  session_id: string;
  name: string;
  model: string;
  mode: 'chat' | 'text';
  tokens: number;
  pending_tokens: number;
  turns: number;
  dropped_turns: number;
  on_full: 'error' | 'shift';
  busy: boolean;
  response_id?: string;  // The reply that is being written, if it is a response.
  tier: Tier;
  hot_bytes: number;
  warm_bytes: number;
  cold_bytes: number;
  created_s: number;
  last_used_s: number;
  parent_id: string;  // The session that it was forked from, which may have ended; empty: none.
  fork_turn: number;  // The first turn that is not the parent's.
  metadata: Metadata;
}

export interface SessionPage {
  data: Session[];
  has_more: boolean;
  next?: string;
}

export interface SessionDetail extends Session {
  messages?: { role: string; content: string | null }[];
  text?: string;
}

// What the page keeps with a session.
export interface Metadata {
  title?: string;  // Shown if the session has no name. It need not be unique.
  tags?: string;  // Separated by commas.
  version_of?: string;  // The session with which the conversation began of which this one is another version.
  made_from?: string;  // The session from which an edit or another reply has made this version; empty: from the texts alone.
}

// Pairs to set; null removes one.
export type MetadataChanges = { [Name in keyof Metadata]?: string | null };

export interface Model {
  id: string;
  parent?: string;
  context_length: number;
  state: 'unloaded' | 'loading' | 'ready' | 'failed';
  status: { value: string; progress?: number; failed?: boolean };
  store?: string;  // The other program that has stored its file.
  problem?: string;  // Why it cannot be loaded, or why its last load failed.
  memory_bytes?: number;  // Of its weights and contexts; missing: none.
  idle_unload_s: number;  // 0: never.
  capabilities: string[];
  meta: { n_ctx: number; n_ctx_train: number; n_params: number; size: number };
}

// A download of a model that is in progress.
export interface PullState {
  source: string;
  file?: string;
  completed: number;
  total?: number;
}

export interface ModelList {
  data: Model[];
  uma?: { pulls: PullState[] };  // For an administrator.
}

// The receipt of a reply: `uma.usage`.
export interface Usage {
  prompt_tokens: number;
  reused_tokens: number;
  recomputed_tokens: number;
  completion_tokens: number;
  reasoning_tokens: number;
  dropped_turns: number;
  dropped_tokens: number;
  tier: Tier;
  reuse_reason: string;
  restore_ms: number;
  queue_ms: number;
  ttft_ms: number;
  tokens_per_s: number;
  seed: number;
  cache_miss?: CacheMiss;
}

// Why tokens of the prompt were computed again.
export interface CacheMiss {
  kind: string;
  cause?: string;
  token: number;
  message?: number;
  role?: string;
  lost_tokens: number;
  known_tokens: number;
  repeats?: number;
}

// How the reply of a turn ended, and its cost.
export interface Receipt {
  turn: number;
  reason: string;
  usage: Usage;
}

export interface ContentPart {
  type: string;
  text?: string;
  image_url?: string | null;
}

// `turn` of the session; of an item that waits, the next one.
export type Item = { uma: { turn: number } } & (
  | { type: 'message'; id: string; role: 'system' | 'user' | 'assistant' | 'developer'; status?: string; content: ContentPart[] }
  | { type: 'reasoning'; id: string; content: ContentPart[] }
  | { type: 'function_call'; id: string; call_id: string; name: string; arguments: string; status?: string }
  | { type: 'function_call_output'; id: string; call_id: string; output: string | ContentPart[] }
);

export interface ItemPage {
  data: Item[];
  has_more: boolean;
  last_id: string | null;
}

export interface ResponseObject {
  id: string;
  status: string;
  error: { message: string } | null;
  output: Item[];
  uma: { session_id: string; turn: number; reason?: string; usage?: Usage };
}

export type InputPart = { type: 'input_text'; text: string } | { type: 'input_image'; image_url: string };
// An input of the user: a text with pictures as data: URIs, or the result of a tool call.
export type InputItem =
  | { role: 'user'; content: InputPart[] }
  | { role: 'assistant'; content: string }
  | { type: 'function_call'; call_id: string; name: string; arguments: string }
  | { type: 'function_call_output'; call_id: string; output: string | InputPart[] };

export interface SessionOptions {
  model?: string;
  system?: string;
  name?: string;
  on_full?: 'error' | 'shift';
  metadata?: Metadata;
}

export interface KeyInfo {
  name: string;
  tenant: string;
  requests_per_minute: number;
  tokens_per_minute: number;
  deadline_ms: number | null;  // null: limits.deadline_ms; 0: none.
  admin: boolean;
}

export type NewKey = { name: string } & { [Option in Exclude<keyof KeyInfo, 'name'>]?: KeyInfo[Option] | undefined };

export interface ConfigValue {
  key: string;
  value: string;  // Empty: not set.
  source: 'default' | 'file' | 'environment' | 'flag' | 'passed' | 'derived';
  place?: string;  // The file and line, the variable, the flag, or the setting that it follows.
}

export interface SamplingDefaults {
  family?: string;
  [name: string]: { value: number | string[]; source: string } | string | undefined;
}
