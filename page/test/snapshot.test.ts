import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Metrics } from '../src/metrics.ts';
import { callsOf, snapshotOf } from '../src/snapshot.ts';

const kText = `# HELP uma_tokens_total Tokens
uma_tokens_total 120
uma_model{name="a\\"b"} 1
uma_worker_cells_total{worker="0",model="tiny"} 16384
uma_worker_cells_used{worker="0",model="tiny"} 60
uma_device_memory_usable_bytes{device="Vulkan0"} 1000
uma_decode_ms_avg 20
uma_warm_bytes NaN
`;

test('metrics with and without labels', () => {
  const metrics = new Metrics(kText);
  assert.equal(metrics.value('uma_tokens_total'), 120);
  assert.equal(metrics.value('uma_warm_bytes'), null);
  assert.equal(metrics.value('uma_nothing'), null);
  assert.equal(metrics.value('uma_worker_cells_used', { worker: '0' }), 60);
  assert.deepEqual(metrics.labelled('uma_model'), [{ labels: { name: 'a"b' }, value: 1 }]);
});

test('a snapshot of a poll', () => {
  const health = { status: 'ok', model: 'ready', requests_open: 2, last_tick_s: 0.1, oldest_waiting_s: null, crashes_total: 0, last_crash: null } as const;
  const now = snapshotOf(kText, [], health, 1000);
  assert.equal(now.totals.tokens, 120);
  assert.equal(now.contract_ms, 60);
  assert.deepEqual(now.workers, [{ worker: 0, model: 'tiny', sequences_active: 0, queue_depth: 0, cells_used: 60, cells_total: 16384 }]);
  assert.equal(now.devices[0]?.busy_ratio, null);
});

test('calls of a trace, with the pauses of streams that went on', () => {
  const calls = callsOf([
    { ph: 'M', name: 'thread_name', tid: 1, ts: 0, args: { name: 'uma-lane-0' } },
    { ph: 'X', name: 'tick', tid: 1, ts: 0, dur: 9000, args: { running: 1 } },
    { ph: 'X', name: 'decode', tid: 1, ts: 1000, dur: 4000, args: { rows: 4 } },
    { ph: 'X', name: 'save', tid: 1, ts: 6000, dur: 100, args: { bytes: 77 } },
    { ph: 'X', name: 'tick', tid: 1, ts: 40000, dur: 7000, args: { running: 0 } },
    { ph: 'X', name: 'decode', tid: 1, ts: 41000, dur: 5000, args: { rows: 3 } },
    { ph: 'X', name: 'decode', tid: 1, ts: 941000, dur: 5000, args: { rows: 1 } },
    { ph: 'b', name: 'reply', tid: 1, ts: 0, id: 4 },
  ], 100_000);
  assert.deepEqual(calls.map(({ lane, kind, rows, pause_ms, began_ms }) => [lane, kind, rows, pause_ms, began_ms]), [
    ['lane-0', 'decode', 4, null, 99_055], ['lane-0', 'move', 0, null, 99_060], ['lane-0', 'decode', 3, 41, 99_095],
    ['lane-0', 'decode', 1, null, 99_995],
  ]);
  assert.equal(calls[1]?.moved, 'hot_warm_bytes');
  assert.equal(calls[1]?.bytes, 77);
});
