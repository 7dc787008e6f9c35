// The calls of each lane over the last seconds, drawn on a canvas.
import { useEffect, useRef } from 'preact/hooks';
import { count, counted, milliseconds } from './format.ts';
import { calls, kTimelineMs, snapshot } from './live.ts';
import type { LaneCall } from './snapshot.ts';

const kRowPx = 44;
const kLabelPx = 84;
const kKindNames: Record<LaneCall['kind'], string> = { decode: 'Decode', prefill: 'Prefill', embed: 'Embed', draw: 'Draw', move: 'KV moved' };

function lanesOf(all: readonly LaneCall[]): string[] {
  return [...new Set(all.map((call) => call.lane))].sort();
}

// Heights of bars: the rows of a call on a logarithmic scale, because prefills have a hundred times the rows of a decode.
const barPx = (rows: number) => Math.max(4, Math.min(kRowPx - 14, 6 + 5 * Math.log2(1 + rows)));

// `to`: the Unix time at the right end.
function draw(canvas: HTMLCanvasElement, all: readonly LaneCall[], to: number, contractMs: number) {
  const lanes = lanesOf(all);
  const width = canvas.clientWidth;
  const height = Math.max(1, lanes.length) * kRowPx + 16;
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext('2d');
  if (!context) return;
  const style = getComputedStyle(canvas);
  const colour = (name: string) => style.getPropertyValue(`--${name}`).trim();
  context.scale(scale, scale);
  context.font = '12px system-ui, sans-serif';
  const perMs = (width - kLabelPx) / kTimelineMs;
  const xOf = (time: number) => width - (to - time) * perMs;
  lanes.forEach((lane, i) => {
    const bottom = (i + 1) * kRowPx - 6;
    context.fillStyle = colour('text');
    context.fillText(lane.slice(0, 13), 0, bottom - 8);
    context.fillStyle = colour('border');
    context.fillRect(kLabelPx, bottom, width - kLabelPx, 1);
    for (const call of all) {
      if (call.lane !== lane) continue;
      const x = xOf(call.began_ms);
      const w = Math.max(1, call.ms * perMs);
      if (x + w < kLabelPx) continue;
      const h = barPx(call.rows);
      context.fillStyle = colour(call.kind);
      context.fillRect(Math.max(kLabelPx, x), bottom - h, w, h);
      if (call.pause_ms !== null && call.pause_ms > contractMs) {
        // A pause beyond the promise stands above its call.
        context.fillStyle = colour('bad');
        const pause = call.pause_ms * perMs;
        context.fillRect(Math.max(kLabelPx, x + w - pause), bottom - kRowPx + 10, Math.max(2, pause), 3);
      }
    }
  });
  context.fillStyle = colour('muted');
  for (let s = 0; s <= kTimelineMs / 1000; s += 5) context.fillText(s === 0 ? 'now' : `−${s} s`, xOf(to - s * 1000) - (s === 0 ? 24 : 12), height - 2);
}

export function Timeline() {
  const canvas = useRef<HTMLCanvasElement>(null);
  const all = calls.value;
  const contract = snapshot.value?.contract_ms ?? Infinity;
  const to = snapshot.value?.unix_ms ?? 0;
  useEffect(() => {
    const redraw = () => canvas.current && draw(canvas.current, calls.value, to, contract);
    redraw();
    addEventListener('resize', redraw);
    return () => removeEventListener('resize', redraw);
  }, [all, to, contract]);
  const kinds = (Object.keys(kKindNames) as LaneCall['kind'][]).map((kind) => {
    const of = all.filter((call) => call.kind === kind);
    return { kind, calls: of.length, rows: of.reduce((sum, call) => sum + call.rows, 0), ms: of.reduce((sum, call) => sum + call.ms, 0) };
  }).filter(({ calls }) => calls > 0);
  const pauses = all.filter((call) => call.pause_ms !== null);
  const late = pauses.filter((call) => call.pause_ms! > contract).length;
  const longest = pauses.reduce((most, call) => Math.max(most, call.pause_ms!), 0);
  return (
    <>
      <canvas ref={canvas} class="timeline" height={lanesOf(all).length * kRowPx + 16} role="img" aria-label="Calls of the lanes in the last 30 seconds; the table below has their sums" />
      <div class="scroll">
        <table>
          <caption class="hidden">Calls of the last 30 seconds</caption>
          <thead><tr><th>Calls</th><th>Number</th><th>Rows</th><th>Time</th></tr></thead>
          <tbody>
            {kinds.map(({ kind, calls, rows, ms }) => (
              <tr><td><span class={`swatch ${kind}`} /> {kKindNames[kind]}</td><td>{count(calls)}</td><td>{count(rows)}</td><td>{milliseconds(ms)}</td></tr>
            ))}
            {kinds.length === 0 && <tr><td colSpan={4}>Nothing was computed in the last 30 seconds.</td></tr>}
          </tbody>
        </table>
      </div>
      {pauses.length > 0 && (
        <p class={late > 0 ? 'bad' : undefined}>
          The longest pause of a stream was {milliseconds(longest)}; {milliseconds(contract)} are promised.{' '}
          {late > 0 ? `${counted(late, 'pause')} took longer (marked above the bars).` : 'No pause took longer.'}
        </p>
      )}
    </>
  );
}
