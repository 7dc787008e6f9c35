import assert from 'node:assert/strict';
import { test } from 'node:test';
import { missSentence, receiptLine, receiptSentence, reuseSentence } from '../src/receipt.ts';
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

test('a receipt in one line', () => {
  assert.equal(receiptLine(usage({}), 'stop'), '1,920/1,946 remembered · 12 tokens · 44 ms · 1,235/s');
  assert.equal(receiptLine(usage({ completion_tokens: 0 }), 'cancelled'), '1,920/1,946 remembered · The reply was stopped.');
});

test('the whole receipt', () => {
  assert.equal(receiptSentence(usage({})),
    '1,920 of 1,946 tokens were remembered, from disk, 31 ms. 12 tokens written; the first after 44 ms, then 1,235 per second.');
  assert.equal(receiptSentence(usage({ completion_tokens: 1, tokens_per_s: 0, dropped_turns: 2, reasoning_tokens: 1 }), 'length'),
    '1,920 of 1,946 tokens were remembered, from disk, 31 ms. 1 token written, 1 of them reasoning; the first after 44 ms. ' +
    '2 old turns dropped, because the context was full. The reply was cut: its limit or the context was reached.');
});

test('where a prompt left what was known', () => {
  const miss = { kind: 'text', token: 812, message: 3, role: 'user', lost_tokens: 1204, known_tokens: 2016 };
  assert.equal(missSentence(miss), 'Message 3 (user) differs from token 812 on, so 1,204 tokens were computed again.');
  assert.equal(missSentence({ ...miss, kind: 'reasoning', role: 'assistant', lost_tokens: 1 }),
    'The reasoning differs in message 3 (assistant) from token 812 on, so 1 token was computed again.');
  assert.equal(missSentence({ ...miss, kind: 'system', repeats: 3 }), 'The system prompt differs from token 812 on, so 1,204 tokens were ' +
    'computed again. This happens again and again, as with a clock: put it behind what stays the same.');
  assert.equal(missSentence({ ...miss, kind: 'not_held' }),
    'What was remembered from token 812 on was gone, or slower to read than to compute, so 1,204 tokens were computed again.');
  assert.equal(missSentence({ ...miss, kind: 'model' }), 'Another model had read this prompt, so 1,204 tokens were computed again.');
  assert.equal(missSentence({ ...miss, lost_tokens: 0 }), '', 'another conversation loses nothing');
  assert.ok(receiptSentence(usage({ cache_miss: miss })).includes('remembered, from disk, 31 ms. Message 3 (user) differs'));
});
