import assert from 'node:assert/strict';
import { test } from 'node:test';
import { History } from '../src/history.ts';

test('a ring keeps the last samples', () => {
  const history = new History(['a', 'b'], 1000, 3);
  for (let i = 1; i <= 5; ++i) history.add(i * 1000, { a: i });
  assert.equal(history.length, 3);
  assert.deepEqual(history.series('a'), [[3000, 3], [4000, 4], [5000, 5]]);
  assert.deepEqual(history.series('b'), [[3000, NaN], [4000, NaN], [5000, NaN]]);
  assert.equal(history.latest('a'), 5);
  assert.equal(history.latest('b'), null);
});

test('samples of one step are one, and a maximum stays', () => {
  const history = new History(['gauge', 'peak'], 2000, 10, new Set(['peak'] as const));
  history.add(2000, { gauge: 5, peak: 9 });
  history.add(2500, { gauge: 4, peak: 3 });
  history.add(3999, { gauge: null, peak: null });
  assert.deepEqual(history.series('gauge'), [[2000, 4]]);
  assert.deepEqual(history.series('peak'), [[2000, 9]]);
});

test('an older sample is ignored', () => {
  const history = new History(['a'], 1000, 4);
  history.add(5000, { a: 1 });
  history.add(3000, { a: 2 });
  assert.deepEqual(history.series('a'), [[5000, 1]]);
});

test('a history that was cleared begins again', () => {
  const history = new History(['a'], 1000, 2);
  for (let i = 1; i <= 3; ++i) history.add(i * 1000, { a: i });
  history.clear();
  history.add(1000, { a: 7 });
  assert.deepEqual(history.series('a'), [[1000, 7]]);
});

test('an empty history', () => {
  const history = new History(['a']);
  assert.deepEqual(history.series('a'), []);
  assert.equal(history.latest('a'), null);
});
