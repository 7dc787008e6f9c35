import assert from 'node:assert/strict';
import { test } from 'node:test';
import { callsWith, type LaneCall, longestPause, rateOf, type Snapshot } from '../src/snapshot.ts';

const call = (began_ms: number, pause_ms: number | null): LaneCall =>
  ({ lane: 'lane-0', kind: 'decode', began_ms, ms: 1, rows: 1, pause_ms });
const snapshot = (unix_ms: number, uptime_s: number, tokens: number, calls: LaneCall[] = []) =>
  ({ unix_ms, uptime_s, totals: { tokens }, calls }) as unknown as Snapshot;

test('rates are those between two snapshots of one daemon', () => {
  const before = snapshot(1000, 10, 500);
  assert.equal(rateOf(snapshot(3000, 12, 600), before, 'tokens'), 50);
  assert.equal(rateOf(snapshot(3000, 1, 7), before, 'tokens'), null);
  assert.equal(rateOf(before, before, 'tokens'), null);
  assert.equal(rateOf(before, undefined, 'tokens'), null);
});

test('calls leave the timeline with time', () => {
  const first = callsWith([], snapshot(1000, 1, 0, [call(100, null), call(900, 8)]), 30_000);
  assert.deepEqual(first.map(({ began_ms }) => began_ms), [100, 900]);
  const later = callsWith(first, snapshot(30_500, 30, 0, [call(30_400, null)]), 30_000);
  assert.deepEqual(later.map(({ began_ms }) => began_ms), [900, 30_400]);
});

test('the longest pause is null if no stream has waited', () => {
  assert.equal(longestPause([call(1, null)]), null);
  assert.equal(longestPause([call(1, 8.4), call(2, null), call(3, 22)]), 22);
});
