// Small charts of the last hour, as SVG.
import { useSignal } from '@preact/signals';

export interface Line {
  label: string;
  points: readonly [number, number][];  // Unix time in ms, value; NaN: not known.
  kind: string;  // A class of the style sheet, which has its colour.
}

const kWidth = 600;
const kHeight = 90;
const kColumns = 300;  // Points that are drawn at most.

// The largest value of each column, so that a short peak is never lost.
function columns(points: readonly [number, number][], from: number, to: number): (number | null)[] {
  const result: (number | null)[] = new Array(kColumns).fill(null);
  for (const [time, value] of points) {
    if (time < from || time > to || Number.isNaN(value)) continue;
    const at = Math.min(kColumns - 1, Math.floor(((time - from) / (to - from)) * kColumns));
    result[at] = Math.max(result[at] ?? 0, value);
  }
  return result;
}

function pathOf(values: readonly (number | null)[], top: number): string {
  let path = '';
  let last = -Infinity;
  values.forEach((value, i) => {
    if (value === null) return;
    const x = ((i + 0.5) / kColumns) * kWidth;
    const y = kHeight - (value / top) * (kHeight - 4);
    // A longer gap is a time in which nothing was measured.
    path += `${i - last > 10 ? 'M' : 'L'}${x.toFixed(1)} ${y.toFixed(1)}`;
    last = i;
  });
  return path;
}

// The space between a line and the axis, for its pale filling.
function areaOf(path: string): string {
  return path.split(/(?=M)/).filter((piece) => piece !== '').map((piece) => {
    const points = [...piece.matchAll(/[ML]([\d.]+) /g)];
    return `${piece}L${points.at(-1)![1]} ${kHeight}L${points[0]![1]} ${kHeight}Z`;
  }).join('');
}

function niceTop(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((top) => top >= value) ?? value;
}

interface Props {
  title: string;
  lines: readonly Line[];
  show: (value: number) => string;
}

export function Chart({ title, lines, show }: Props) {
  const spanMin = useSignal(10);
  const to = Date.now();
  const from = to - spanMin.value * 60_000;
  const drawn = lines.map((line) => ({ ...line, values: columns(line.points, from, to) }));
  const most = Math.max(0, ...drawn.flatMap((line) => line.values.map((value) => value ?? 0)));
  const top = niceTop(most);
  const latest = drawn.map((line) => {
    const value = line.points.at(-1)?.[1];
    return value === undefined || Number.isNaN(value) ? '–' : show(value);
  });
  const isEmpty = drawn.every((line) => line.values.every((value) => value === null));
  return (
    <figure class="chart">
      <figcaption>
        <strong>{title}</strong>
        <button type="button" class="quiet" aria-label={`${spanMin.value} min of ${title}: show ${spanMin.value === 10 ? 60 : 10} min`} onClick={() => (spanMin.value = spanMin.value === 10 ? 60 : 10)}>{spanMin.value} min</button>
      </figcaption>
      <p class="keys">
        {drawn.map((line, i) => <span><i class={`swatch ${line.kind}`} />{line.label} <b>{latest[i]}</b></span>)}
      </p>
      <div class="plot">
        <span class="about">{show(top)}</span>
        {isEmpty && <span class="about none">Nothing was measured yet.</span>}
        <svg viewBox={`0 0 ${kWidth} ${kHeight}`} preserveAspectRatio="none" role="img" aria-label={`${title}: ${drawn.map((line, i) => `${line.label} ${latest[i]}`).join(', ')}; at most ${show(most)} in ${spanMin.value} minutes`}>
          <path class="grid-line" d={`M0 4H${kWidth}M0 ${4 + (kHeight - 4) / 2}H${kWidth}M0 ${kHeight}H${kWidth}`} />
          {drawn.map((line) => {
            const path = pathOf(line.values, top);
            return <g class={`line ${line.kind}`}>{line.kind !== 'promise' && <path class="area" d={areaOf(path)} />}<path d={path} /></g>;
          })}
        </svg>
      </div>
    </figure>
  );
}
