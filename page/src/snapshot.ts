// What the live view shows: the state of the daemon at one moment. /v1/events sends it; until then it is made
// from /metrics, /v1/models, /health and /v1/trace. `null` and absent lists mean: not known.
import type { HealthAnswer, TraceEvent } from './api.ts';
import { Metrics } from './metrics.ts';
import type { Model } from './types.ts';

// One call of the library by a lane.
export interface LaneCall {
  lane: string;
  kind: 'decode' | 'prefill' | 'embed' | 'draw' | 'move';
  began_ms: number;  // Unix time.
  ms: number;
  rows: number;
  pause_ms: number | null;  // Of a decode call: the time since the end of the last one that its streams waited.
  bytes?: number;  // Of a move between tiers.
  moved?: keyof Moves;
}

export interface Slot {
  slot: number;
  state: 'idle' | 'prefill' | 'decode' | 'swapped';
  request: string | null;
  tenant: string | null;
  tokens: number;  // In the context.
  prompt_tokens: number;  // Those of the prompt; the part of them that is computed is `tokens`.
}

export interface Worker {
  worker: number;
  model: string;
  sequences_active: number;
  queue_depth: number;
  cells_used: number;
  cells_total: number;
  slots?: Slot[];
}

export interface Waiting {
  position: number;
  request: string;
  model: string;
  tenant: string;
  class: 'interactive' | 'background';
  stage: 'loading' | 'preparing' | 'queued';
  waited_ms: number;
}

export interface TierState {
  states: number;
  bytes: number;
  hits_total: number;
}

// Bytes that have moved between tiers since the start.
export interface Moves {
  hot_warm_bytes: number;
  warm_cold_bytes: number;
  cold_warm_bytes: number;
  warm_hot_bytes: number;
}

export interface ModelMemory {
  name: string;
  state: Model['state'];
  load_progress: number;
  bytes: number;  // Reserved for it: weights and contexts. Known from polling: the weights.
  in_use: number | null;  // Requests that use it now.
}

export interface Device {
  name: string;
  memory_usable_bytes: number;
  memory_reserved_bytes: number;
  weights_bytes: number;
  context_bytes: number;
  busy_ratio: number | null;
}

export interface TenantShare {
  tenant: string;
  share: number;  // Of the work of the last ten seconds, 0 to 1.
  sequences_active: number;
  queue_depth: number;
}

export interface Snapshot {
  unix_ms: number;
  status: 'ok' | 'degraded';
  uptime_s: number;
  rss_bytes: number;
  threads: number;
  crashes_total: number;
  requests_open: number;
  oldest_waiting_s: number | null;
  contract_ms: number;  // The time between two tokens of a stream that is promised.
  totals: {
    requests: number;
    requests_failed: number;
    tokens: number;
    prompt_tokens: number;
    reused_tokens: number;
    promises_kept: number;
    promises_broken: number;
  };
  latency: { p50_ms: number; p95_ms: number; p99_ms: number; ttft_p50_ms: number; ttft_p95_ms: number };
  workers: Worker[];
  queue?: Waiting[];
  queue_depth: number;
  tiers: { hot: TierState; warm: TierState; cold: TierState };
  moves?: Moves;
  memory: { usable_bytes: number; reserved_bytes: number; decisions?: string[] };
  models: ModelMemory[];
  devices: Device[];
  tenants?: TenantShare[];
}

// The snapshot as far as it is known from the answers to a poll.
export function snapshotOf(text: string, models: readonly Model[], health: HealthAnswer, nowMs: number): Snapshot {
  const metrics = new Metrics(text);
  const value = (name: string) => metrics.value(`uma_${name}`) ?? 0;
  const tier = (name: string): TierState =>
    ({ states: value(`${name}_sessions`), bytes: value(`${name}_bytes`), hits_total: value(`${name}_hits_total`) });
  return {
    unix_ms: nowMs,
    status: health.status,
    uptime_s: value('uptime_s'),
    rss_bytes: value('rss_bytes'),
    threads: value('threads'),
    crashes_total: health.crashes_total,
    requests_open: health.requests_open,
    oldest_waiting_s: health.oldest_waiting_s,
    // The automatic promise with the default of scheduler.tick_ms.
    contract_ms: Math.max(30, 3 * value('decode_ms_avg')),
    totals: {
      requests: value('requests_total'),
      requests_failed: value('requests_failed_total'),
      tokens: value('tokens_total'),
      prompt_tokens: value('prompt_tokens_total'),
      reused_tokens: value('reused_tokens_total'),
      promises_kept: value('promises_kept_total'),
      promises_broken: value('promises_broken_total'),
    },
    latency: {
      p50_ms: value('p50_ms'), p95_ms: value('p95_ms'), p99_ms: value('p99_ms'),
      ttft_p50_ms: value('ttft_p50_ms'), ttft_p95_ms: value('ttft_p95_ms'),
    },
    workers: metrics.labelled('uma_worker_cells_total').map(({ labels }) => {
      const of = (name: string) => metrics.value(`uma_worker_${name}`, labels) ?? 0;
      return {
        worker: Number(labels['worker']), model: labels['model'] ?? '',
        sequences_active: of('sequences_active'), queue_depth: of('queue_depth'),
        cells_used: of('cells_used'), cells_total: of('cells_total'),
      };
    }),
    queue_depth: value('queue_depth') + value('embed_queue_depth') + value('picture_queue_depth'),
    tiers: { hot: tier('hot'), warm: tier('warm'), cold: tier('cold') },
    memory: { usable_bytes: value('memory_usable_bytes'), reserved_bytes: value('memory_reserved_bytes') },
    models: models.filter((model) => !model.parent).map((model) => ({
      name: model.id, state: model.state, load_progress: model.status.progress ?? (model.state === 'ready' ? 1 : 0),
      bytes: model.meta.size, in_use: null,
    })),
    devices: metrics.labelled('uma_device_memory_usable_bytes').map(({ labels }) => {
      const of = (name: string) => metrics.value(`uma_device_${name}`, labels);
      return {
        name: labels['device'] ?? '',
        memory_usable_bytes: of('memory_usable_bytes') ?? 0, memory_reserved_bytes: of('memory_reserved_bytes') ?? 0,
        weights_bytes: of('weights_bytes') ?? 0, context_bytes: of('context_bytes') ?? 0, busy_ratio: of('busy_ratio'),
      };
    }),
  };
}

const kMoves: Record<string, keyof Moves> = {
  'save': 'hot_warm_bytes', 'write state': 'warm_cold_bytes', 'read state': 'cold_warm_bytes', 'restore': 'warm_hot_bytes',
};
const kKinds: Record<string, LaneCall['kind']> = {
  'decode': 'decode', 'prefill': 'prefill', 'prefill image': 'prefill', 'embed': 'embed', 'draw': 'draw',
  'save': 'move', 'restore': 'move', 'read state': 'move', 'write state': 'move',
};

// The calls of a trace. Its times have no origin, so the end of the newest call is set to `endMs`.
export function callsOf(events: readonly TraceEvent[], endMs: number): LaneCall[] {
  const lanes = new Map<number, string>();
  const spans: TraceEvent[] = [];
  let latestUs = 0;
  for (const event of events) {
    if (event.ph === 'M') lanes.set(event.tid, String(event.args?.['name'] ?? event.tid));
    if (event.ph !== 'X' || !(event.name === 'tick' || event.name in kKinds)) continue;
    spans.push(event);
    if (kKinds[event.name] && kKinds[event.name] !== 'move') latestUs = Math.max(latestUs, event.ts + (event.dur ?? 0));
  }
  spans.sort((a, b) => a.ts - b.ts);
  const ticks = new Map<number, TraceEvent>();  // The tick of each lane in which the calls lie.
  // The end of the last decode call of each lane, and whether sequences were left in the context after its tick.
  const decodes = new Map<number, { end: number; tick: TraceEvent | undefined }>();
  const calls: LaneCall[] = [];
  for (const event of spans) {
    const kind = kKinds[event.name];
    if (!kind) {
      ticks.set(event.tid, event);
      continue;
    }
    const ms = (event.dur ?? 0) / 1000;
    let pause: number | null = null;
    if (kind === 'decode') {
      const end = event.ts / 1000 + ms;
      const before = decodes.get(event.tid);
      // Otherwise the streams had ended, and nobody waited. A sequence that is left may be one in prefill: then the time
      // counts as a pause although no stream waited.
      if (before && Number(before.tick?.args?.['running'] ?? 0) > 0) pause = end - before.end;
      decodes.set(event.tid, { end, tick: ticks.get(event.tid) });
    }
    calls.push({
      lane: (lanes.get(event.tid) ?? String(event.tid)).replace(/^uma-/, ''), kind,
      began_ms: endMs + (event.ts - latestUs) / 1000, ms,
      rows: Number(event.args?.['rows'] ?? 0), pause_ms: pause,
      ...(kind === 'move' ? { bytes: Number(event.args?.['bytes'] ?? 0), moved: kMoves[event.name] } : {}),
    });
  }
  return calls;
}
