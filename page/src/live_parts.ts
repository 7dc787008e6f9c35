// What the live view draws, computed from snapshots and calls. Pure.
import type { Part } from './bars.tsx';
import type { LaneCall, Moves, Snapshot } from './snapshot.ts';

// --- Lanes

// Heights in the drawing of the lanes.
export const kNamePx = 18;
export const kPausePx = 38;
export const kAxisPx = 18;
const kBarPxMax = 52;
const kGapPx = 14;

export interface Lane {
  name: string;  // For people.
  calls: LaneCall[];
  hasPauses: boolean;
  top: number;  // In the drawing.
  workPx: number;  // The height of its calls.
}

// Heights of bars: the rows of a call on a logarithmic scale, because prefills have a hundred times the rows of a decode.
export const barPx = (rows: number) => Math.max(5, Math.min(kBarPxMax, 6 + 5 * Math.log2(1 + rows)));

// The lanes from the top to the bottom, and the height of their drawing.
export function lanesOf(all: readonly LaneCall[]): { lanes: Lane[]; height: number } {
  // Lanes of several models have the same names.
  const hasModels = new Set(all.flatMap((call) => call.model ?? [])).size > 1;
  const byName = new Map<string, LaneCall[]>();
  for (const call of all) {
    const name = laneName(call.lane) + (hasModels && call.model ? ` of ${call.model}` : '');
    const own = byName.get(name);
    if (own) own.push(call);
    else byName.set(name, [call]);
  }
  const lanes = [...byName].map(([name, own]) => {
    const hasPauses = own.some((call) => call.pause_ms !== null);
    const workPx = own.reduce((most, call) => Math.max(most, barPx(call.rows)), 0) + 2;
    return { name, calls: own, hasPauses, top: 0, workPx };
  });
  // Those with streams first, those that only move KV last.
  const rank = (lane: Lane) => (lane.hasPauses ? 0 : lane.calls.some((call) => call.rows > 0) ? 1 : 2);
  lanes.sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
  let top = 0;
  for (const lane of lanes) {
    lane.top = top;
    top += kNamePx + lane.workPx + (lane.hasPauses ? kPausePx : 0) + kGapPx;
  }
  return { lanes, height: top + kAxisPx };
}

export const laneName = (lane: string) => lane.charAt(0).toUpperCase() + lane.slice(1).replace(/-(\d+)$/, ' $1');

// --- Tiers

const kMovingMs = 2500;  // A move is shown as going on for this time.

// The moves that went on in the last moment before `nowMs`.
export function movingNow(all: readonly LaneCall[], nowMs: number): ReadonlySet<keyof Moves> {
  const moving = new Set<keyof Moves>();
  for (const call of all) if (call.moved && call.began_ms + call.ms > nowMs - kMovingMs) moving.add(call.moved);
  return moving;
}

// --- Memory

const kKinds = 6;

// The reserved memory in parts: the weights of each model, and the rest, which is contexts and buffers.
export function memoryParts(now: Snapshot): (Part & { name: string })[] {
  const held = now.models.filter((model) => model.state === 'ready' || model.state === 'loading');
  const parts = held.map((model, i) => ({ name: model.name, kind: `kind-${i % kKinds}`, value: model.bytes * (model.state === 'loading' ? model.load_progress : 1) }));
  const rest = now.memory.reserved_bytes - parts.reduce((sum, part) => sum + part.value, 0);
  return rest > 0 ? [...parts, { name: 'Contexts and buffers', kind: 'rest', value: rest }] : parts;
}
