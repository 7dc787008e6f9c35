import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ApiError } from '../src/api.ts';
import { emptyReply, type ReplyEvent, takeEvent, wholeReply } from '../src/reply.ts';
import type { SseEvent } from '../src/sse.ts';

const created = { type: 'response.created', sequence_number: 0, response: { id: 'resp_1', uma: { turn: 3 } } };
const delta = (number: number, text: string) => ({ type: 'response.output_text.delta', sequence_number: number, delta: text });
const completed = { type: 'response.completed', sequence_number: 9, response: { id: 'resp_1' } };

async function* stream(events: readonly object[], failure?: Error): AsyncGenerator<SseEvent> {
  for (const event of events) yield { event: 'message', data: JSON.stringify(event) };
  if (failure) throw failure;
}
const lost = () => new TypeError('network error');
const noPause = async () => {};

async function read(reply: AsyncGenerator<ReplyEvent>): Promise<number[]> {
  const numbers: number[] = [];
  for await (const event of reply) numbers.push(event.sequence_number ?? -1);
  return numbers;
}

test('events become a reply', () => {
  const reply = emptyReply(false);
  assert.equal(takeEvent(reply, created as ReplyEvent), true);
  for (const event of [
    { type: 'response.reasoning_text.delta', delta: 'hm' }, delta(5, 'Hel'), delta(6, 'lo'),
    { type: 'response.output_item.added', item: { type: 'function_call', name: 'look' } },
    { type: 'response.function_call_arguments.delta', delta: '{"a"' }, { type: 'response.function_call_arguments.delta', delta: ':1}' },
  ]) assert.equal(takeEvent(reply, event), true);
  assert.equal(takeEvent(reply, { type: 'response.in_progress' }), false);
  assert.deepEqual(reply, {
    turn: 3, text: 'Hello', reasoning: 'hm', calls: [{ name: 'look', arguments: '{"a":1}' }], isStopping: false, isElsewhere: false,
  });
});

test('a lost connection goes on behind its last event', async () => {
  const attached: [string, number][] = [];
  const rest = [[delta(5, 'lo')], [], [delta(6, '!'), completed]];
  const numbers = await read(wholeReply(
    () => stream([created, delta(4, 'Hel')], lost()),
    (id, after) => {
      attached.push([id, after]);
      return stream(rest.shift()!, attached.length === 1 ? lost() : undefined);  // The second one only ends.
    },
    noPause,
  ));
  assert.deepEqual(numbers, [0, 4, 5, 6, 9]);
  assert.deepEqual(attached, [['resp_1', 4], ['resp_1', 5], ['resp_1', 5]]);
});

test('what cannot go on fails', async () => {
  const never = (): AsyncGenerator<SseEvent> => stream([], new Error('must not attach'));
  await assert.rejects(read(wholeReply(() => stream([], lost()), never, noPause)), /network error/);
  await assert.rejects(read(wholeReply(() => stream([created], new ApiError(500, '', 'broken')), never, noPause)), /broken/);
  await assert.rejects(read(wholeReply(() => stream([{ type: 'error', message: 'too slow' }]), never, noPause)), /too slow/);
  await assert.rejects(
    read(wholeReply(() => stream([created], lost()), () => stream([], new ApiError(404, 'E_SESSION_001', 'unknown')), noPause)),
    /umad ended while it was written/);
  let tries = 0;
  await assert.rejects(read(wholeReply(() => stream([created], lost()), () => (++tries, stream([], lost())), noPause)), /connection was lost/);
  assert.equal(tries, 5);
});
