// The calls of each lane over the last seconds, drawn on a canvas: the work of each call, and below it what its streams waited.
import { useSignal } from '@preact/signals';
import { useEffect, useRef } from 'preact/hooks';
import { count, counted, milliseconds } from './format.ts';
import { calls, kTimelineMs, snapshot } from './live.ts';
import { barPx, kAxisPx, kNamePx, kPausePx, type Lane, lanesOf } from './live_parts.ts';
import type { LaneCall } from './snapshot.ts';

const kShortMs = 5000;
const kKindNames: Record<LaneCall['kind'], string> = { decode: 'Decode', prefill: 'Prefill', embed: 'Embed', draw: 'Draw', move: 'KV moved' };
// A pixel has several calls. The low bars are drawn last, so that each stays visible.
const kOrder: LaneCall['kind'][] = ['prefill', 'draw', 'embed', 'decode', 'move'];

// `to`: the Unix time at the right end.
function draw(canvas: HTMLCanvasElement, all: readonly LaneCall[], to: number, spanMs: number, contractMs: number) {
  const { lanes, height } = lanesOf(all);
  const width = canvas.clientWidth;
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext('2d');
  if (!context) return;
  // As a colour of the canvas it is the one of the theme.
  const colour = (name: string) => {
    canvas.style.color = `var(--${name})`;
    return getComputedStyle(canvas).color;
  };
  context.scale(scale, scale);
  context.font = '12px system-ui, sans-serif';
  const perMs = width / spanMs;
  const xOf = (time: number) => width - (to - time) * perMs;
  context.fillStyle = colour('line');
  for (let i = 1; i < 5; ++i) context.fillRect(Math.round((width * i) / 5), 0, 1, height - kAxisPx);
  for (const lane of lanes) {
    const bottom = lane.top + kNamePx + lane.workPx;
    context.fillStyle = colour('sunken');
    context.fillRect(0, bottom, width, 1);
    for (const kind of kOrder) {
      context.fillStyle = colour(kind);
      for (const call of lane.calls) {
        const x = xOf(call.began_ms);
        const w = Math.max(1, call.ms * perMs - (call.ms * perMs > 3 ? 1 : 0));
        if (call.kind === kind && x + w > 0) context.fillRect(x, bottom - barPx(call.rows), w, barPx(call.rows));
      }
    }
    if (lane.hasPauses) drawPauses(context, lane, bottom + 5, width, xOf, perMs, contractMs, colour);
    context.fillStyle = colour('text');
    context.fillText(lane.name, 0, lane.top + 12);
  }
  context.fillStyle = colour('muted');
  for (let i = 0; i <= 5; ++i) {
    const text = i === 5 ? 'now' : `−${Math.round((spanMs / 1000) * (1 - i / 5))} s`;
    const w = context.measureText(text).width;
    context.fillText(text, Math.min(width - w, Math.max(0, (width * i) / 5 - (i === 0 ? 0 : w / 2))), height - 4);
  }
}

// What the streams of a lane waited for each token, downwards from the axis. The dashed line is the promise.
function drawPauses(
  context: CanvasRenderingContext2D, lane: Lane, top: number, width: number, xOf: (time: number) => number, perMs: number,
  contractMs: number, colour: (name: string) => string,
) {
  const promisePx = (kPausePx - 6) / 2;
  for (const isLate of [false, true]) {
    context.fillStyle = colour(isLate ? 'bad' : 'move');
    for (const call of lane.calls) {
      if (call.pause_ms === null || call.pause_ms > contractMs !== isLate) continue;
      const x = xOf(call.began_ms + call.ms);
      const w = Math.max(isLate ? 2 : 1, Math.min(4, call.ms * perMs - 1));
      if (x > 0) context.fillRect(x - w, top, w, Math.min(kPausePx - 6, (call.pause_ms / contractMs) * promisePx));
    }
  }
  context.strokeStyle = colour('text');
  context.setLineDash([3, 4]);
  context.beginPath();
  context.moveTo(0, top + promisePx);
  context.lineTo(width, top + promisePx);
  context.stroke();
  context.setLineDash([]);
}

export function Timeline() {
  const canvas = useRef<HTMLCanvasElement>(null);
  const spanMs = useSignal(kTimelineMs);
  const all = calls.value;
  const contract = snapshot.value?.contract_ms ?? Infinity;
  const { height } = lanesOf(all);
  const to = snapshot.value?.unix_ms ?? 0;
  useEffect(() => {
    const redraw = () => canvas.current && draw(canvas.current, calls.value, to, spanMs.value, contract);
    redraw();
    const colours = matchMedia('(prefers-color-scheme: dark)');
    addEventListener('resize', redraw);
    colours.addEventListener('change', redraw);
    return () => {
      removeEventListener('resize', redraw);
      colours.removeEventListener('change', redraw);
    };
  }, [all, to, contract, spanMs.value]);
  const kinds = (Object.keys(kKindNames) as LaneCall['kind'][]).map((kind) => {
    const of = all.filter((call) => call.kind === kind);
    return { kind, calls: of.length, rows: of.reduce((sum, call) => sum + call.rows, 0), ms: of.reduce((sum, call) => sum + call.ms, 0) };
  }).filter(({ calls }) => calls > 0);
  const pauses = all.filter((call) => call.pause_ms !== null);
  const late = pauses.filter((call) => call.pause_ms! > contract).length;
  const longest = pauses.reduce((most, call) => Math.max(most, call.pause_ms!), 0);
  if (all.length === 0) {
    return (
      <div class="nothing">
        <p>Nothing was computed in the last 30 seconds.</p>
        <p class="note">Send a message, and each call of the model appears here: prefill, decode, and how long the streams waited for it.</p>
      </div>
    );
  }
  return (
    <>
      <ul class="keys">
        {kinds.map(({ kind, calls, rows, ms }) => (
          <li title={kind === 'move' ? undefined : `${counted(rows, 'row')} in ${counted(calls, 'call')}`}>
            <i class={`swatch ${kind}`} />{kKindNames[kind]} <b>{count(calls)}</b>
            {kind !== 'move' && <span class="rows-of"> × {count(rows / calls)} rows</span>} in <b>{milliseconds(ms)}</b>
          </li>
        ))}
        <li class="last">
          <span class="segments" role="group" aria-label="Time shown">
            {[kTimelineMs, kShortMs].map((span) => (
              <button type="button" class="quiet" aria-pressed={spanMs.value === span} onClick={() => (spanMs.value = span)}>{span / 1000} s</button>
            ))}
          </span>
        </li>
      </ul>
      <canvas ref={canvas} class="timeline" height={height} role="img" aria-label="Calls of the lanes in the last 30 seconds; their sums stand above" />
      {pauses.length > 0 && (
        <p class="verdict">
          <span class={`dot ${late > 0 ? 'late' : 'kept'}`} />
          <span>
            The longest pause of a stream was {milliseconds(longest)}; {milliseconds(contract)} are promised (dashed).{' '}
            {late > 0 ? <strong class="bad">{counted(late, 'pause')} took longer.</strong> : 'No pause took longer.'}
          </span>
        </p>
      )}
    </>
  );
}
