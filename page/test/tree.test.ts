import assert from 'node:assert/strict';
import { test } from 'node:test';
import { branchesAt, branchParent, familyOf, searchRows, tagsOf, titleOf, treeRows, versionsOf } from '../src/tree.ts';
import type { Session } from '../src/types.ts';

const session = (id: string, used = 0, more: Partial<Session> = {}): Session => ({
  session_id: id, name: '', model: 'tiny', mode: 'chat', tokens: 0, pending_tokens: 0, turns: 4, dropped_turns: 0, on_full: 'error', busy: false, tier: 'none',
  hot_bytes: 0, warm_bytes: 0, cold_bytes: 0, created_s: 0, last_used_s: used, parent_id: '', fork_turn: 0, metadata: {}, ...more,
});
const a = session('a', 1, { created_s: 1 });
const b = session('b', 2, { created_s: 2, parent_id: 'a', fork_turn: 2, metadata: { title: 'Second', tags: 'work, ,home' } });
const c = session('c', 9, { created_s: 3, parent_id: 'b', fork_turn: 3 });
const d = session('d', 5, { parent_id: 'gone', fork_turn: 1 });
const e = session('e', 3, { created_s: 4, parent_id: 'c', fork_turn: 2 });  // Differs from a, from which it was not forked.

const rowsOf = (sessions: Session[]) => treeRows(sessions).map(({ session: { session_id }, depth }) => `${session_id}${depth}`);

test('forks stand below their parents, the last used tree first', () => {
  assert.deepEqual(rowsOf([a, b, c, d]), ['a0', 'b1', 'c2', 'd0']);
  assert.deepEqual(rowsOf([a, b, { ...c, last_used_s: 3 }, d]), ['d0', 'a0', 'b1', 'c2']);
  assert.deepEqual(rowsOf([c, d]), ['c0', 'd0'], 'parents that are gone');
  assert.deepEqual(rowsOf([a, b, c, e]), ['a0', 'b1', 'c2', 'e1'], 'a branch hangs on the session that it differs from');
  assert.deepEqual(rowsOf([b, c, e]), ['b0', 'c1', 'e2'], 'or on its parent, if that session is gone');
});

test('a conversation has one row, however many versions it has', () => {
  const version = (id: string, parent: string, used: number) => session(id, used, { parent_id: parent, fork_turn: 1, metadata: { version_of: 'v', made_from: parent } });
  const all = [session('v', 1), version('w', 'v', 7), version('x', 'w', 4), session('f', 2, { parent_id: 'x', fork_turn: 3, metadata: { version_of: 'v', made_from: 'w' } }), d];
  const rows = (open?: string) => treeRows(all, open).map(({ session: { session_id }, depth, versions }) => `${session_id}${depth}:${versions.length}`);
  assert.deepEqual(rows(), ['w0:3', 'f1:1', 'd0:1'], 'the version used last, and what was forked from another one');
  assert.deepEqual(rows('x'), ['d0:1', 'x0:3', 'f1:1'], 'the version that is open');
  assert.deepEqual(versionsOf(all[0]!, all).map(({ session_id }) => session_id), ['v', 'w', 'x']);
  assert.deepEqual(searchRows(treeRows(all.map((each) => (each.session_id === 'x' ? { ...each, name: 'found' } : each))), 'found').map(({ session: { session_id } }) => session_id), ['x']);
  const left = all.filter(({ session_id }) => session_id !== 'v' && session_id !== 'w');
  assert.deepEqual(treeRows([...left, version('y', 'v', 9)]).map(({ session: { session_id }, versions }) => `${session_id}${versions.length}`),
    ['y2', 'f1', 'd1'], 'the first versions are gone');
});

test('a family is all that was forked from one another', () => {
  const ids = (id: string) => familyOf(id, [a, b, c, d, e]).map(({ session_id }) => session_id).join('');
  assert.equal(ids('c'), 'abce');
  assert.equal(ids('d'), 'd');
  assert.equal(ids('unknown'), '');
});

test('a chain of ten thousand forks is a list', () => {
  const rows = treeRows(Array.from({ length: 10_000 }, (_, i) => session(`s${i}`, i, i === 0 ? {} : { parent_id: `s${i - 1}`, fork_turn: i })));
  assert.equal(rows.length, 10_000);
  assert.equal(rows.at(-1)?.depth, 9_999);
  const versions = Array.from({ length: 10_000 }, (_, i) => session(`s${i}`, i, i === 0 ? {} : { parent_id: `s${i - 1}`, metadata: { version_of: 's0', made_from: `s${i - 1}` } }));
  assert.deepEqual(treeRows(versions).map((row) => row.versions.length), [10_000]);
});

test('a search keeps the rows above a match', () => {
  const rows = treeRows([a, b, c, d]);
  const found = (query: string) => searchRows(rows, query).map(({ session: { session_id } }) => session_id);
  assert.deepEqual(found('second'), ['a', 'b']);
  assert.deepEqual(found('#home tiny'), ['a', 'b']);
  assert.deepEqual(found('nothing'), []);
  assert.deepEqual(found(' '), ['a', 'b', 'c', 'd']);
  assert.deepEqual(found('a'), [], 'ids are not words');
  const one = treeRows([session('0123456789abcdef', 1)]);
  assert.equal(searchRows(one, '01234567').length, 1);
  assert.equal(searchRows(one, '234').length, 0);
});

test('titles and tags', () => {
  assert.equal(titleOf(b), 'Second');
  assert.equal(titleOf({ ...b, name: 'work' }), 'work');
  assert.equal(titleOf(session('0123456789')), 'Session 01234567');
  assert.deepEqual(tagsOf(b), ['work', 'home']);
});

test('branches of a turn', () => {
  const all = [a, b, c, e];
  const at = (of: Session, turn: number) => {
    const branches = branchesAt(of, turn, all);
    return [branches.all.map(({ session_id }) => session_id).join(''), branches.at];
  };
  assert.deepEqual(at(a, 2), ['abe', 0]);
  assert.deepEqual(at(b, 2), ['abe', 1]);
  assert.deepEqual(at(e, 2), ['abe', 2]);
  assert.deepEqual(at(c, 2), ['abe', 1], 'c has the turn of b, from which it was forked later');
  assert.deepEqual(at(c, 3), ['bc', 1]);
  assert.deepEqual(at(a, 1), ['a', 0]);

  // Forked from the system prompt of a session that had dropped turns: its turns are counted anew.
  const shifted = session('f', 1, { dropped_turns: 3, turns: 6 });
  const branch = session('g', 2, { parent_id: 'f', fork_turn: 0 });
  assert.deepEqual(branchesAt(branch, 0, [shifted, branch]).all, [branch]);
  assert.deepEqual(branchesAt(shifted, 3, [shifted, branch]).all, [shifted]);
});

test('a branch hangs on the session with which it shares the turns before', () => {
  const known = new Map([a, b, c].map((each) => [each.session_id, each]));
  assert.equal(branchParent('c', 3, known), 'b');
  assert.equal(branchParent('c', 2, known), 'a');
  assert.equal(branchParent('c', 4, known), 'c');
});
