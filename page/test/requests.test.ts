import assert from 'node:assert/strict';
import { test } from 'node:test';
import { clipped } from '../src/api.ts';
import { requestFields } from '../src/settings.ts';
import { asMarkdown, itemsBefore, messageOfUser, toSend, turnsOf } from '../src/turns.ts';
import type { Item } from '../src/types.ts';

test('settings become the fields of a request', () => {
  assert.deepEqual(requestFields({}), {});
  assert.deepEqual(requestFields({
    temperature: 0, top_k: 5, min_p: 0.1, seed: 7, max_tokens: 9, stop: 'a\n\nb', effort: 'low', thinking_budget: 0, instructions: ' x',
    schema: '{"type":"object"}', tools: '[{"type":"function","function":{"name":"w"}},{"type":"function","name":"v"}]',
  }), {
    temperature: 0, seed: 7, max_output_tokens: 9, stop: ['a', 'b'], instructions: ' x', reasoning: { effort: 'low', max_tokens: 0 },
    text: { format: { type: 'json_schema', name: 'reply', schema: { type: 'object' } } },
    tools: [{ type: 'function', name: 'w' }, { type: 'function', name: 'v' }], uma: { top_k: 5, min_p: 0.1 },
  });
  assert.throws(() => requestFields({ schema: '{' }), /The schema is not JSON/);
  assert.throws(() => requestFields({ tools: '{}' }), /must be a JSON array/);
});

const kId = '0'.repeat(32);
const message = (turn: number, n: number, role: 'system' | 'user' | 'assistant', text: string): Item =>
  ({ type: 'message', id: `msg_${kId}_${turn}_${n}`, uma: { turn }, role, content: [{ type: role === 'assistant' ? 'output_text' : 'input_text', text }] });

test('items become turns', () => {
  const call: Item = { type: 'function_call', id: `fc_${kId}_1_1_0`, uma: { turn: 1 }, call_id: 'c', name: 'weather', arguments: '{}' };
  const output: Item = { type: 'function_call_output', id: `fco_${kId}_2_0`, uma: { turn: 2 }, call_id: 'c', output: 'rain' };
  const turns = turnsOf([message(0, 0, 'system', 'S'), message(0, 1, 'user', 'U'), message(0, 2, 'assistant', 'A'),
    message(1, 0, 'user', 'V'), call, output, message(2, 1, 'assistant', 'B')]);
  assert.deepEqual(turns.map(({ turn, system, input, output: reply }) => [turn, system, input.length, reply.length]),
    [[0, ['S'], 1, 1], [1, [], 1, 1], [2, [], 1, 1]]);
  assert.deepEqual(toSend(turns[0]!.input), [messageOfUser('U', [])]);
  assert.deepEqual(toSend(turns[2]!.input), [{ type: 'function_call_output', call_id: 'c', output: 'rain' }]);
  const file = asMarkdown('T', turns);
  for (const part of ['# T', '## System\n\nS', '## You\n\nU', 'Calls `weather`', 'rain', 'B']) assert.ok(file.includes(part), part);
});

test('questions and replies that were added alternate', () => {
  const items = [message(0, 0, 'user', 'U'), message(0, 1, 'assistant', 'A'), message(0, 2, 'user', 'V'), message(0, 3, 'assistant', 'B')];
  const turns = turnsOf(items);
  assert.deepEqual(turns.map(({ turn, part, input, output }) => [turn, part, input, output]),
    [[0, 0, [items[0]], [items[1]]], [0, 1, [items[2]], [items[3]]]]);
  assert.deepEqual(itemsBefore(turns[0]!, turns), []);
  assert.deepEqual(toSend(itemsBefore(turns[1]!, turns)), [messageOfUser('U', []), { role: 'assistant', content: 'A' }]);
});

test('a picture in the result of a tool is sent again', () => {
  const address = 'data:image/png;base64,AAAA';
  const parts = [{ type: 'input_text', text: 'seen' }, { type: 'input_image', image_url: address }];
  const turns = turnsOf([{ type: 'function_call_output', id: `fco_${kId}_0_0`, uma: { turn: 0 }, call_id: 'c', output: parts }]);
  assert.deepEqual(toSend(turns[0]!.input), [{ type: 'function_call_output', call_id: 'c', output: parts }]);
  const file = asMarkdown('T', turns);
  for (const part of ['[picture]', 'seen']) assert.ok(file.includes(part), part);
});

test('a picture that is gone cannot be sent again', () => {
  const [turn] = turnsOf([{ type: 'message', id: `msg_${kId}_0_0`, uma: { turn: 0 }, role: 'user', content: [{ type: 'input_image', image_url: null }] }]);
  assert.throws(() => toSend(turn!.input), /not here any more/);
});

test('a title is cut between characters', () => {
  assert.equal(clipped('Köln', 2), 'K');
  assert.equal(clipped('Köln', 3), 'Kö');
  assert.equal(clipped('Köln', 50), 'Köln');
});
