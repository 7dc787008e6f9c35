import assert from 'node:assert/strict';
import { test } from 'node:test';
import { receiptSentence, reuseSentence } from '../src/receipt.ts';
import type { Usage } from '../src/types.ts';

const usage = (change: Partial<Usage>): Usage => ({
  prompt_tokens: 1946, reused_tokens: 1920, recomputed_tokens: 26, completion_tokens: 12, reasoning_tokens: 0, dropped_turns: 0,
  dropped_tokens: 0, tier: 'cold', reuse_reason: 'cold', restore_ms: 31.2, queue_ms: 0.1, ttft_ms: 44, tokens_per_s: 1234.5, seed: 1, ...change,
});

test('what was reused, from where, and how long it took', () => {
  assert.equal(reuseSentence(usage({})), '1,920 of 1,946 tokens were remembered, from disk, 31 ms');
  assert.equal(reuseSentence(usage({ tier: 'hot', reuse_reason: 'hot', restore_ms: 0 })), '1,920 of 1,946 tokens were remembered, in the context');
  assert.equal(reuseSentence(usage({ tier: 'warm', reuse_reason: 'prefix', restore_ms: 1500 })),
    '1,920 of 1,946 tokens were remembered, from memory, 1.5 s, computed for another request');
});

test('nothing was reused', () => {
  assert.equal(reuseSentence(usage({ reused_tokens: 0, reuse_reason: 'diverged', tier: 'none' })),
    'None of 1,946 tokens was remembered: the stored state is of other tokens');
  assert.equal(reuseSentence(usage({ prompt_tokens: 0, reused_tokens: 0, reuse_reason: '' })), 'The request ended before it began');
  assert.equal(reuseSentence(usage({ reused_tokens: 0, reuse_reason: 'of a later version' })), 'None of 1,946 tokens was remembered');
});

test('the whole receipt', () => {
  assert.equal(receiptSentence(usage({})),
    '1,920 of 1,946 tokens were remembered, from disk, 31 ms. 12 tokens written; the first after 44 ms, then 1,235 per second.');
  assert.equal(receiptSentence(usage({ completion_tokens: 1, tokens_per_s: 0, dropped_turns: 2, reasoning_tokens: 1 }), 'length'),
    '1,920 of 1,946 tokens were remembered, from disk, 31 ms. 1 token written, 1 of them reasoning; the first after 44 ms. ' +
    '2 old turns dropped, because the context was full. The reply was cut: its limit or the context was reached.');
});
