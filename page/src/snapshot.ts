// What the live view shows: the state of the daemon at one moment, as /v1/events sends it.
import type { Model } from './types.ts';

// One call of the library by a lane.
export interface LaneCall {
  lane: string;
  model?: string;  // Of the lane.
  kind: 'decode' | 'prefill' | 'embed' | 'draw' | 'move';
  began_ms: number;  // Unix time.
  ms: number;
  rows: number;
  pause_ms: number | null;  // Of a decode call: the longest time that one of its streams waited since its last token.
  bytes?: number;  // Of a move between tiers.
  moved?: keyof Moves;
}

export interface Agent {
  program?: string;
  id: string;
  parent?: string;
}

export interface Slot {
  slot: number;
  state: 'idle' | 'restore' | 'prefill' | 'decode';
  request: string | null;  // Of another tenant, or idle: null.
  tenant: string | null;
  agent?: Agent;
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
  request: string | null;  // Of another tenant: null.
  model: string;
  tenant: string;
  agent?: Agent;
  class: 'interactive' | 'background';
  stage: 'loading' | 'preparing' | 'queued' | 'swapped';
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
  bytes: number;  // Of its weights.
  in_use: number;  // Requests that use it now.
}

export interface Device {
  name: string;
  memory_usable_bytes: number;
  memory_reserved_bytes: number;
  weights_bytes: number;
  context_bytes: number;
  busy_ratio: number;
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
  queue: Waiting[];
  queue_depth: number;
  tiers: { hot: TierState; warm: TierState; cold: TierState };
  moves: Moves;
  memory: { usable_bytes: number; reserved_bytes: number; decisions: string[] };
  models: ModelMemory[];
  devices: Device[];
  tenants: TenantShare[];
  calls: LaneCall[];  // Since the snapshot before.
  calls_left_out: number;  // Shorter ones, of very many.
}

// What was before the first snapshot, in steps of ten seconds: each point is its Unix time in ms and the numbers of these names.
export interface LiveHistory {
  names: string[];
  points: (number | null)[][];
}

// Counters of two snapshots as a rate; null after a restart of the daemon.
export function rateOf(now: Snapshot, before: Snapshot | undefined, name: keyof Snapshot['totals']): number | null {
  if (!before || now.uptime_s < before.uptime_s || now.unix_ms <= before.unix_ms) return null;
  return Math.max(0, ((now.totals[name] - before.totals[name]) * 1000) / (now.unix_ms - before.unix_ms));
}

// The calls so far and those of a snapshot, without those that began more than `spanMs` before it.
export function callsWith(calls: readonly LaneCall[], now: Snapshot, spanMs: number): LaneCall[] {
  return [...calls, ...now.calls].filter((call) => call.began_ms > now.unix_ms - spanMs);
}

export function longestPause(calls: readonly LaneCall[]): number | null {
  return calls.reduce<number | null>((most, call) => (call.pause_ms === null ? most : Math.max(most ?? 0, call.pause_ms)), null);
}
