// Watches the daemon: by /v1/events where it is served, else by polling.
import { signal } from '@preact/signals';
import { isAborted, isUnserved, messageOf } from './api.ts';
import { History } from './history.ts';
import { callsOf, type LaneCall, type Moves, type Snapshot, snapshotOf } from './snapshot.ts';
import { api } from './state.ts';

export const kHistoryNames = [
  'tokens_per_s', 'prompt_per_s', 'reused_per_s', 'streams', 'queue', 'pause_ms', 'reserved_bytes', 'hot_bytes', 'warm_bytes',
  'cold_bytes',
] as const;
export type HistoryName = (typeof kHistoryNames)[number];

export const kTimelineMs = 30_000;
const kCallsMax = 4096;
// Between two polls, while the view is open and while it is not.
const kOpenMs = 2000;
const kClosedMs = 10_000;

export const snapshot = signal<Snapshot | null>(null);
export const calls = signal<readonly LaneCall[]>([]);
export const history = new History<HistoryName>(kHistoryNames, 2000, 1800, new Set<HistoryName>(['pause_ms']));
export const source = signal<'events' | 'polling' | 'none'>('none');
export const problem = signal('');
export const traceIsRefused = signal(false);  // /v1/trace is for the administrator.

const moves: Moves = { hot_warm_bytes: 0, warm_cold_bytes: 0, cold_warm_bytes: 0, warm_hot_bytes: 0 };

// The snapshots of the last two seconds, the oldest first: rates are computed over this time.
const recent: Snapshot[] = [];
const kRecentMs = 2000;

// Counters of two snapshots as a rate; null after a restart of the daemon.
function rateOf(now: Snapshot, before: Snapshot | undefined, name: keyof Snapshot['totals']): number | null {
  if (!before || now.uptime_s < before.uptime_s || now.unix_ms <= before.unix_ms) return null;
  return Math.max(0, ((now.totals[name] - before.totals[name]) * 1000) / (now.unix_ms - before.unix_ms));
}

// Adds the calls that are later than those which are known. Times of two polls differ by a little (`toleranceMs`), because a
// trace has no absolute time.
function addCalls(added: readonly LaneCall[], toleranceMs: number): LaneCall[] {
  const ends = new Map<string, number>();
  for (const call of calls.value) ends.set(call.lane, Math.max(ends.get(call.lane) ?? 0, call.began_ms));
  const fresh = added.filter((call) => call.began_ms > (ends.get(call.lane) ?? 0) + toleranceMs);
  const oldest = Date.now() - kTimelineMs;
  calls.value = [...calls.value.filter((call) => call.began_ms > oldest), ...fresh].slice(-kCallsMax);
  return fresh;
}

function addSnapshot(now: Snapshot, fresh: readonly LaneCall[]) {
  while (recent[1] && recent[1].unix_ms <= now.unix_ms - kRecentMs) recent.shift();
  const before = recent[0];
  recent.push(now);
  history.add(now.unix_ms, {
    tokens_per_s: rateOf(now, before, 'tokens'),
    prompt_per_s: rateOf(now, before, 'prompt_tokens'),
    reused_per_s: rateOf(now, before, 'reused_tokens'),
    streams: now.workers.reduce((sum, worker) => sum + worker.sequences_active, 0),
    queue: now.queue_depth,
    pause_ms: fresh.reduce<number | null>((most, call) => (call.pause_ms === null ? most : Math.max(most ?? 0, call.pause_ms)), null),
    reserved_bytes: now.memory.reserved_bytes,
    hot_bytes: now.tiers.hot.bytes,
    warm_bytes: now.tiers.warm.bytes,
    cold_bytes: now.tiers.cold.bytes,
  });
  snapshot.value = now;
}

async function poll(withTrace: boolean, abort: AbortSignal) {
  const [text, models, health] = await Promise.all([api.getMetrics(abort), api.listModels(), api.getHealth(abort)]);
  const nowMs = Date.now();
  let fresh: LaneCall[] = [];
  const now = snapshotOf(text, models, health, nowMs);
  if (withTrace && !traceIsRefused.value) {
    try {
      const events = await api.getTrace(4, abort);
      fresh = addCalls(callsOf(events, nowMs - (health.last_tick_s ?? 0) * 1000), 1);
      for (const call of fresh) if (call.moved) moves[call.moved] += call.bytes ?? 0;
      now.moves = { ...moves };
    } catch (error) {
      if (isAborted(error)) throw error;
      traceIsRefused.value = true;
    }
  }
  addSnapshot(now, fresh);
}

function takeEvent(name: string, data: string) {
  const body = JSON.parse(data);
  if (name === 'snapshot') addSnapshot(body, addCalls(body.calls ?? [], 0));
  if (name === 'history') {
    history.clear();
    for (const [time, ...values] of body.points as number[][]) {
      history.add(time!, Object.fromEntries((body.names as HistoryName[]).map((field, i) => [field, values[i] ?? null])));
    }
  }
}

const sleep = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, ms));

// Watches until `abort`. Events, and the trace, are asked for only while the view is open.
export async function watch(isOpen: () => boolean, abort: AbortSignal) {
  let hasEvents = true;
  while (!abort.aborted) {
    const began = Date.now();
    try {
      if (hasEvents && isOpen()) {
        for await (const event of api.watch(abort)) {
          source.value = 'events';
          problem.value = '';
          takeEvent(event.event, event.data);
          if (!isOpen()) break;
        }
      } else {
        source.value = 'polling';
        if (document.visibilityState === 'visible') await poll(isOpen(), abort);
        problem.value = '';
      }
    } catch (error) {
      if (isAborted(error)) return;
      if (hasEvents && isUnserved(error)) {
        hasEvents = false;
        continue;
      }
      problem.value = messageOf(error);
    }
    const wasOpen = isOpen();
    while (!abort.aborted && Date.now() - began < (isOpen() ? kOpenMs : kClosedMs) && isOpen() === wasOpen) await sleep(250);
  }
}
