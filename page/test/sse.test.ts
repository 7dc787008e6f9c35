import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readEvents, readJsonLines, SseParser } from '../src/sse.ts';

const kStream = '\ufeff: a comment\nevent: a\ndata: one\ndata: two\n\r\ndata:{"x":1}\r\n\r\nid: 7\rretry: 3\rdata\r\revent: lost\n\ndata: not finished';
const kExpected = [
  { event: 'a', data: 'one\ntwo' }, { event: 'message', data: '{"x":1}' }, { event: 'message', data: '' },
];

test('events are the same however the stream is cut', () => {
  for (let size = 1; size <= kStream.length; ++size) {
    const parser = new SseParser();
    const events = [];
    for (let at = 0; at < kStream.length; at += size) events.push(...parser.push(kStream.slice(at, at + size)));
    assert.deepEqual(events, kExpected, `pieces of ${size}`);
  }
});

// Searching all that has come with each piece would take minutes.
test('a long event comes in many pieces', { timeout: 300_000 }, () => {
  const parser = new SseParser();
  const piece = 'x'.repeat(1 << 10);
  parser.push('data: ');
  for (let i = 0; i < 8192; ++i) assert.deepEqual(parser.push(piece), []);
  const [event] = parser.push('\n\n');
  assert.equal(event?.data.length, 8192 * piece.length);
});

test('an event without an end is refused', () => {
  const parser = new SseParser();
  assert.throws(() => {
    for (let i = 0; i < 40; ++i) parser.push('x'.repeat(1 << 20));
  }, /too long/);
});

test('a character that is cut between two pieces of the body is whole', async () => {
  const bytes = new TextEncoder().encode('data: Köln ✓\n\n');
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (const byte of bytes) controller.enqueue(new Uint8Array([byte]));
      controller.close();
    },
  });
  const events = [];
  for await (const event of readEvents(body)) events.push(event);
  assert.deepEqual(events, [{ event: 'message', data: 'Köln ✓' }]);
});

test('lines of JSON are read with and without an end of the last line', async () => {
  const body = new Response('{"a":1}\n\n{"a":2}').body!;
  const lines = [];
  for await (const line of readJsonLines(body)) lines.push(line);
  assert.deepEqual(lines, [{ a: 1 }, { a: 2 }]);
});
