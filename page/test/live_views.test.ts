import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ageGroup, groupHeadings } from '../src/age_groups.ts';
import { partsOf } from '../src/bars.tsx';
import { laneName, lanesOf, memoryParts, movingNow } from '../src/live_parts.ts';
import type { LaneCall, ModelMemory, Snapshot } from '../src/snapshot.ts';
import type { TreeRow } from '../src/tree.ts';
import type { Session } from '../src/types.ts';

const call = (lane: string, change: Partial<LaneCall>): LaneCall =>
  ({ lane, kind: 'decode', began_ms: 1000, ms: 8, rows: 2, pause_ms: null, ...change });

test('lanes with streams stand first, those that only move KV last', () => {
  const { lanes, height } = lanesOf([
    call('store', { kind: 'move', rows: 0 }), call('draw', { kind: 'draw' }), call('lane-1', { pause_ms: 9 }), call('lane-0', { pause_ms: 9 }),
    call('lane-0', { kind: 'prefill', rows: 512 }),
  ]);
  assert.deepEqual(lanes.map(({ name, hasPauses, calls }) => [name, hasPauses, calls.length]), [
    ['Lane 0', true, 2], ['Lane 1', true, 1], ['Draw', false, 1], ['Store', false, 1],
  ]);
  for (let i = 1; i < lanes.length; ++i) assert.ok(lanes[i]!.top >= lanes[i - 1]!.top + lanes[i - 1]!.workPx);
  assert.ok(height > lanes.at(-1)!.top + lanes.at(-1)!.workPx);
  assert.equal(laneName('lane-0'), 'Lane 0');
  assert.equal(laneName('store'), 'Store');
});

test('lanes of several models are told apart', () => {
  const namesOf = (all: LaneCall[]) => lanesOf(all).lanes.map(({ name }) => name);
  const small = call('lane-0', { model: 'small' });
  assert.deepEqual(namesOf([small, small, call('store', { rows: 0 })]), ['Lane 0', 'Store']);
  assert.deepEqual(namesOf([small, call('lane-0', { model: 'big' }), small]), ['Lane 0 of big', 'Lane 0 of small']);
});

test('a move between tiers is shown for a moment', () => {
  const all = [call('store', { kind: 'move', moved: 'hot_warm_bytes', began_ms: 9000 }), call('store', { kind: 'move', moved: 'cold_warm_bytes', began_ms: 1000 })];
  assert.deepEqual([...movingNow(all, 10_000)], ['hot_warm_bytes']);
});

test('parts of a bar fill it at most, and none is invisible', () => {
  const parts = partsOf([{ kind: 'a', value: 1 }, { kind: 'b', value: 0 }, { kind: 'c', value: 9_999 }, { kind: 'd', value: 5_000 }], 10_000, 1);
  assert.deepEqual(parts.map(({ kind, x, width }) => [kind, x, width]), [['a', 0, 1], ['c', 1, 99], ['d', 100, 0]]);
  assert.deepEqual(partsOf([{ kind: 'a', value: 5 }], 0, 1), [{ kind: 'a', x: 0, width: 1 }]);
});

test('reserved memory in parts: weights of models, and the rest', () => {
  const model = (name: string, state: ModelMemory['state'], bytes: number, load_progress = 1) => ({ name, state, bytes, load_progress, in_use: 0 });
  const now = {
    memory: { usable_bytes: 100, reserved_bytes: 60 },
    models: [model('a', 'ready', 20), model('b', 'unloaded', 50), model('c', 'loading', 40, 0.5)],
  } as unknown as Snapshot;
  assert.deepEqual(memoryParts(now).map(({ name, value }) => [name, value]), [['a', 20], ['c', 20], ['Contexts and buffers', 20]]);
});

test('sessions in groups by age, a tree at its last use', () => {
  const now = new Date(2026, 10, 26, 12).getTime();
  const hoursAgo = (hours: number) => now / 1000 - hours * 3600;
  assert.deepEqual([1, 13, 47, 6 * 24, 20 * 24, 90 * 24].map((hours) => ageGroup(hoursAgo(hours), now)),
    ['Today', 'Yesterday', 'Last 7 days', 'Last 7 days', 'Last 30 days', 'Older']);
  const row = (depth: number, hours: number) => ({ depth, session: { last_used_s: hoursAgo(hours) } as Session }) as TreeRow;
  assert.deepEqual(groupHeadings([row(0, 100), row(1, 2), row(0, 3), row(0, 20)], now), ['Today', '', '', 'Yesterday']);
});
