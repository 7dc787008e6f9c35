// The receipt of a reply as sentences.
import { count, counted, milliseconds } from './format.ts';
import type { Usage } from './types.ts';

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

export function receiptSentence(usage: Usage, reason = 'stop'): string {
  const sentences = [`${reuseSentence(usage)}.`];
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
