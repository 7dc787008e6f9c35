// The settings of replies: what the user wrote in the form, and the fields of a request made from it.
import { recall, remember } from './store.ts';

export interface ReplySettings {
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  repeat_penalty?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  seed?: number;
  max_tokens?: number;
  stop?: string;  // A stop text in each line.
  effort?: string;
  thinking_budget?: number;
  instructions?: string;
  schema?: string;  // JSON Schema.
  tools?: string;  // An array of tools in JSON.
  more?: string;  // Further fields in JSON.
}

export interface NumberField {
  name: keyof ReplySettings & string;
  label: string;
  min: number;
  max: number;
  step: number | 'any';
}

export const kNumberFields: readonly NumberField[] = [
  { name: 'temperature', label: 'Temperature', min: 0, max: 100, step: 'any' },
  { name: 'top_p', label: 'top_p', min: 0, max: 1, step: 'any' },
  { name: 'top_k', label: 'top_k', min: 0, max: 1_000_000, step: 1 },
  { name: 'min_p', label: 'min_p', min: 0, max: 0.999, step: 'any' },
  { name: 'repeat_penalty', label: 'Repeat penalty', min: 0.01, max: 100, step: 'any' },
  { name: 'presence_penalty', label: 'Presence penalty', min: -2, max: 2, step: 'any' },
  { name: 'frequency_penalty', label: 'Frequency penalty', min: -2, max: 2, step: 'any' },
  { name: 'seed', label: 'Seed', min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
  { name: 'max_tokens', label: 'Longest reply, tokens', min: 1, max: 10_000_000, step: 1 },
  { name: 'thinking_budget', label: 'Thinking budget, tokens', min: -1, max: 2_147_483_647, step: 1 },
];

export const kEfforts = ['', 'none', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max'] as const;

export const settingsOf = (session: string) => recall<ReplySettings>(`settings.${session}`, recall<ReplySettings>('settings.', {}));
export const keepSettings = (session: string, settings: ReplySettings) => remember(`settings.${session}`, settings);

function parsed(text: string | undefined, what: string): unknown {
  if (!text?.trim()) return undefined;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} is not JSON: ${(error as Error).message}`);
  }
}

// OpenAI's chat completions wrap a function; responses do not. Both forms are taken.
function toolOf(tool: unknown): unknown {
  const wrapped = tool as { type?: string; function?: object };
  return wrapped?.type === 'function' && wrapped.function ? { type: 'function', ...wrapped.function } : tool;
}

// The fields of a request to /v1/responses. Throws an Error with a message for people.
export function requestFields(settings: ReplySettings): Record<string, unknown> {
  const fields: Record<string, unknown> = {};
  const own: Record<string, unknown> = {};
  for (const name of ['temperature', 'top_p', 'presence_penalty', 'frequency_penalty', 'seed'] as const) {
    if (settings[name] !== undefined) fields[name] = settings[name];
  }
  for (const name of ['top_k', 'min_p', 'repeat_penalty'] as const) if (settings[name] !== undefined) own[name] = settings[name];
  if (settings.max_tokens !== undefined) fields['max_output_tokens'] = settings.max_tokens;
  const stop = (settings.stop ?? '').split('\n').filter((line) => line !== '');
  if (stop.length > 0) fields['stop'] = stop;
  if (settings.instructions?.trim()) fields['instructions'] = settings.instructions;
  const reasoning: Record<string, unknown> = {};
  if (settings.effort) reasoning['effort'] = settings.effort;
  if (settings.thinking_budget !== undefined) reasoning['max_tokens'] = settings.thinking_budget;
  if (Object.keys(reasoning).length > 0) fields['reasoning'] = reasoning;
  const schema = parsed(settings.schema, 'The schema');
  if (schema !== undefined) {
    if (typeof schema !== 'object' && typeof schema !== 'boolean') throw new Error('The schema must be a JSON object.');
    fields['text'] = { format: { type: 'json_schema', name: 'reply', schema } };
  }
  const tools = parsed(settings.tools, 'The list of tools');
  if (tools !== undefined) {
    if (!Array.isArray(tools)) throw new Error('The list of tools must be a JSON array.');
    fields['tools'] = tools.map(toolOf);
  }
  const more = parsed(settings.more, 'The object of further fields');
  if (more === undefined) return Object.keys(own).length > 0 ? { ...fields, uma: own } : fields;
  if (typeof more !== 'object' || more === null || Array.isArray(more)) throw new Error('The further fields must be a JSON object.');
  return { ...fields, ...more, uma: { ...own, ...(more as { uma?: object }).uma } };
}
