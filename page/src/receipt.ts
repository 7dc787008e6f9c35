// The receipt of a reply as sentences.
import { count, counted, milliseconds } from './format.ts';
import type { CacheMiss, Usage } from './types.ts';

const kPlaces: Record<string, string> = { hot: 'in the context', warm: 'from memory', cold: 'from disk', shared: 'from another machine' };

const kNotReused: Record<string, string> = {
  one_shot: 'there was no stored beginning',
  not_cached: 'nothing was stored, or computing is faster',
  diverged: 'the stored state is of other tokens',
  refused: 'the stored state could not be used, and the log says why',
};

const kReused: Record<string, string> = {
  shifted: 'moved up after old turns were dropped',
  rewritten: 'up to where the template writes the past differently',
  checkpoint: 'up to the end of an earlier turn',
  prefix: 'computed for another request',
};

const kReasons: Record<string, string> = {
  length: 'The reply was cut: its limit or the context was reached.',
  cancelled: 'The reply was stopped.',
  timeout: 'The reply ran out of time.',
  slow_consumer: 'The reply was cut: the page read it too slowly.',
  error: 'The reply ended with an error.',
};

const kDifferences: Record<string, string> = {
  model: 'Another model had read this prompt',
  settings: 'Options of the template differ',
  system: 'The system prompt differs',
  tools: 'The tools differ',
  reasoning: 'The reasoning differs in MESSAGE',
  call: 'A tool call differs in MESSAGE',
  result: 'The result of a tool differs, MESSAGE,',
  image: 'An image differs in MESSAGE',
  template: 'The words of the template differ, which may have a date,',
  tokens: 'MESSAGE came back in other tokens',
};

const kCauses: Record<string, string> = {
  window: 'cannot be cut back to there',
  unloaded: 'went with the model',
  refused: 'could not be used',
};

// Where the prompt left what was known: "Message 3 (user) differs from token 812 on, so 1,204 tokens were computed again".
export function missSentence(miss: CacheMiss): string {
  if (miss.kind === 'not_found' || miss.lost_tokens === 0) return '';
  const again = `${counted(miss.lost_tokens, 'token')} ${miss.lost_tokens === 1 ? 'was' : 'were'} computed again`;
  if (miss.kind === 'not_held') {
    return `What was remembered from token ${count(miss.token)} on ${kCauses[miss.cause ?? ''] ?? 'was gone, or slower to read than to compute'}, so ${again}.`;
  }
  const message = miss.message === undefined ? 'the text' : `message ${count(miss.message)}${miss.role ? ` (${miss.role})` : ''}`;
  const difference = (kDifferences[miss.kind] ?? 'MESSAGE differs').replace('MESSAGE', message);
  const place = miss.kind === 'model' ? '' : ` from token ${count(miss.token)} on`;
  const clock = (miss.repeats ?? 0) >= 3 ? ' This happens again and again, as with a clock: put it behind what stays the same.' : '';
  return `${difference.charAt(0).toUpperCase()}${difference.slice(1)}${place}, so ${again}.${clock}`;
}

// What was reused: "1,920 of 1,946 tokens were remembered, from disk, 31 ms".
export function reuseSentence(usage: Usage): string {
  if (usage.prompt_tokens === 0) return 'The request ended before it began';
  if (usage.reused_tokens === 0) {
    const why = kNotReused[usage.reuse_reason];
    return `None of ${counted(usage.prompt_tokens, 'token')} was remembered${why ? `: ${why}` : ''}`;
  }
  const parts = [`${count(usage.reused_tokens)} of ${counted(usage.prompt_tokens, 'token')} were remembered`];
  const place = kPlaces[usage.tier];
  if (place) parts.push(place);
  if (usage.restore_ms >= 1) parts.push(milliseconds(usage.restore_ms));
  const how = kReused[usage.reuse_reason];
  if (how) parts.push(how);
  return parts.join(', ');
}

// The same in one line: "1,920/1,946 remembered · 12 tokens · 44 ms · 1,235/s", and how the reply ended if not by itself.
export function receiptLine(usage: Usage, reason: string): string {
  const parts = [`${count(usage.reused_tokens)}/${count(usage.prompt_tokens)} remembered`];
  if (usage.completion_tokens > 0) {
    parts.push(counted(usage.completion_tokens, 'token'), milliseconds(usage.ttft_ms));
    if (usage.tokens_per_s > 0) parts.push(`${count(usage.tokens_per_s)}/s`);
  }
  return [...parts, kReasons[reason]].filter((part) => part !== undefined).join(' · ');
}

export function receiptSentence(usage: Usage, reason = 'stop'): string {
  const sentences = [`${reuseSentence(usage)}.`];
  const miss = usage.cache_miss ? missSentence(usage.cache_miss) : '';
  if (miss) sentences.push(miss);
  if (usage.completion_tokens > 0) {
    const speed = usage.tokens_per_s > 0 ? `, then ${count(usage.tokens_per_s)} per second` : '';
    const reasoning = usage.reasoning_tokens > 0 ? `, ${count(usage.reasoning_tokens)} of them reasoning` : '';
    sentences.push(`${counted(usage.completion_tokens, 'token')} written${reasoning}; the first after ${milliseconds(usage.ttft_ms)}${speed}.`);
  }
  if (usage.dropped_turns > 0) {
    sentences.push(`${counted(usage.dropped_turns, 'old turn')} dropped, because the context was full.`);
  }
  const ended = kReasons[reason];
  if (ended) sentences.push(ended);
  return sentences.join(' ');
}
