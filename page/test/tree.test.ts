import assert from 'node:assert/strict';
import { test } from 'node:test';
import { branchesAt, branchParent, searchRows, tagsOf, titleOf, treeRows } from '../src/tree.ts';
import type { Metadata, Session } from '../src/types.ts';

const session = (id: string, used = 0, created = 0): Session => ({
  session_id: id, name: '', model: 'tiny', mode: 'chat', tokens: 0, pending_tokens: 0, turns: 4, dropped_turns: 0, on_full: 'error', busy: false, tier: 'none',
  hot_bytes: 0, warm_bytes: 0, cold_bytes: 0, created_s: created, last_used_s: used,
});

const about: Record<string, Metadata> = {
  b: { forked_from: 'a', forked_at_turn: '2', title: 'Second', tags: 'work, ,home' },
  c: { forked_from: 'b', forked_at_turn: '3' },
  d: { forked_from: 'gone', forked_at_turn: '1' },
  x: { forked_from: 'y' }, y: { forked_from: 'x' }, z: { forked_from: 'x' }, self: { forked_from: 'self' },
};
const metadata = (id: string) => about[id];
const rowsOf = (sessions: Session[]) => treeRows(sessions, metadata).map(({ session: { session_id }, depth }) => `${session_id}${depth}`);

test('forks stand below their parents, the last used tree first', () => {
  assert.deepEqual(rowsOf([session('a', 1), session('b', 2), session('c', 9), session('d', 5)]), ['a0', 'b1', 'c2', 'd0']);
  assert.deepEqual(rowsOf([session('a', 1), session('b', 2), session('c', 3), session('d', 5)]), ['d0', 'a0', 'b1', 'c2']);
  assert.deepEqual(rowsOf([session('c', 3), session('d', 5)]), ['d0', 'c0'], 'parents that are gone');
});

test('circles of parents lose no session', () => {
  assert.deepEqual(rowsOf([session('x', 3), session('y', 2), session('z', 1), session('self', 0)]).sort(), ['self0', 'x0', 'y0', 'z1']);
});

test('a chain of ten thousand forks is a list', () => {
  const long: Session[] = Array.from({ length: 10_000 }, (_, i) => session(`s${i}`, i));
  const rows = treeRows(long, (id) => (id === 's0' ? undefined : { forked_from: `s${Number(id.slice(1)) - 1}` }));
  assert.equal(rows.length, 10_000);
  assert.equal(rows.at(-1)?.depth, 9_999);
});

test('a search keeps the rows above a match', () => {
  const rows = treeRows([session('a', 1), session('b', 2), session('c', 9), session('d', 5)], metadata);
  const found = (query: string) => searchRows(rows, metadata, query).map(({ session: { session_id } }) => session_id);
  assert.deepEqual(found('second'), ['a', 'b']);
  assert.deepEqual(found('#home tiny'), ['a', 'b']);
  assert.deepEqual(found('nothing'), []);
  assert.deepEqual(found(' '), ['a', 'b', 'c', 'd']);
});

test('titles and tags', () => {
  assert.equal(titleOf(session('b'), about['b']), 'Second');
  assert.equal(titleOf({ ...session('0123456789'), name: 'work' }), 'work');
  assert.equal(titleOf(session('0123456789')), 'Session 01234567');
  assert.deepEqual(tagsOf(about['b']), ['work', 'home']);
});

test('branches of a turn', () => {
  const all = [session('a', 0, 1), session('b', 0, 2), session('c', 0, 3), session('e', 0, 4)];
  const of = (id: string) => ({ ...about, e: { forked_from: 'a', forked_at_turn: '2' } } as Record<string, Metadata>)[id];
  const at = (index: number, turn: number) => {
    const branches = branchesAt(all[index]!, turn, all, of);
    return [branches.all.map(({ session_id }) => session_id).join(''), branches.at];
  };
  assert.deepEqual(at(0, 2), ['abe', 0]);
  assert.deepEqual(at(1, 2), ['abe', 1]);
  assert.deepEqual(at(2, 2), ['abe', 1], 'c has the turn of b, from which it was forked later');
  assert.deepEqual(at(2, 3), ['bc', 1]);
  assert.deepEqual(at(0, 1), ['a', 0]);
});

test('a branch hangs on the session with which it shares the turns before', () => {
  assert.equal(branchParent('c', 3, metadata), 'b');
  assert.equal(branchParent('c', 2, metadata), 'a');
  assert.equal(branchParent('c', 4, metadata), 'c');
  assert.equal(branchParent('self', 0, metadata), 'self');
});
