// Watches the daemon by /v1/events while a view shows it.
import { signal } from '@preact/signals';
import { isAborted, messageOf } from './api.ts';
import { History } from './history.ts';
import { callsWith, type LaneCall, type LiveHistory, longestPause, rateOf, type Snapshot } from './snapshot.ts';
import { api } from './state.ts';

export const kHistoryNames = [
  'tokens_per_s', 'prompt_per_s', 'reused_per_s', 'streams', 'queue', 'pause_ms', 'reserved_bytes', 'hot_bytes', 'warm_bytes',
  'cold_bytes', 'contract_ms',
] as const;
export type HistoryName = (typeof kHistoryNames)[number];

export const kTimelineMs = 30_000;
const kCallsMax = 4096;
const kAgainMs = 2000;  // Before the next try.

export const snapshot = signal<Snapshot | null>(null);
export const calls = signal<readonly LaneCall[]>([]);
export const history = new History<HistoryName>(kHistoryNames, 2000, 1800, new Set<HistoryName>(['pause_ms']));
export const isLive = signal(false);
export const problem = signal('');

// The snapshots of the last two seconds, the oldest first: rates are computed over this time.
let recent: Snapshot[] = [];
const kRecentMs = 2000;

function takeSnapshot(now: Snapshot) {
  calls.value = callsWith(calls.value, now, kTimelineMs).slice(-kCallsMax);
  while (recent[1] && recent[1].unix_ms <= now.unix_ms - kRecentMs) recent.shift();
  const before = recent[0];
  recent.push(now);
  history.add(now.unix_ms, {
    tokens_per_s: rateOf(now, before, 'tokens'),
    prompt_per_s: rateOf(now, before, 'prompt_tokens'),
    reused_per_s: rateOf(now, before, 'reused_tokens'),
    streams: now.workers.reduce((sum, worker) => sum + worker.sequences_active, 0),
    queue: now.queue_depth,
    pause_ms: longestPause(now.calls),
    reserved_bytes: now.memory.reserved_bytes,
    hot_bytes: now.tiers.hot.bytes,
    warm_bytes: now.tiers.warm.bytes,
    cold_bytes: now.tiers.cold.bytes,
    contract_ms: now.contract_ms,
  });
  snapshot.value = now;
}

function takeHistory({ names, points }: LiveHistory) {
  history.clear();
  for (const [time, ...values] of points) {
    history.add(time!, Object.fromEntries(names.map((name, i) => [name, values[i] ?? null])));
  }
}

async function follow(isOpen: () => boolean, abort: AbortSignal) {
  recent = [];
  for await (const event of api.watch(abort)) {
    isLive.value = true;
    problem.value = '';
    if (event.event === 'snapshot') takeSnapshot(JSON.parse(event.data));
    if (event.event === 'history') takeHistory(JSON.parse(event.data));
    if (!isOpen()) return;
  }
}

const sleep = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

// Watches until `abort`, while `isOpen()`.
export async function watch(isOpen: () => boolean, abort: AbortSignal) {
  while (!abort.aborted) {
    if (!isOpen()) {
      await sleep(250);
      continue;
    }
    try {
      await follow(isOpen, abort);
    } catch (error) {
      if (isAborted(error)) return;
      problem.value = messageOf(error);
    }
    isLive.value = false;
    if (isOpen()) await sleep(kAgainMs);
  }
}
