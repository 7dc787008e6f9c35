// Bars that show shares of a whole. They are SVG, because their widths come from numbers and no style is set from a string.
import type { ComponentChildren } from 'preact';

export interface Part {
  kind: string;  // A class of the style sheet, which has its colour.
  value: number;
}

export const percentOf = (value: number, whole: number) => (whole > 0 ? Math.max(0, Math.min(100, (100 * value) / whole)) : 0);

// Several parts of a whole, one behind the other. A part that is not zero is at least `leastPercent` wide.
export function partsOf(parts: readonly Part[], whole: number, leastPercent = 0.6): { kind: string; x: number; width: number }[] {
  let x = 0;
  return parts.filter((part) => part.value > 0).map(({ kind, value }) => {
    const width = Math.min(100 - x, Math.max(leastPercent, percentOf(value, whole)));
    const placed = { kind, x, width };
    x += width;
    return placed;
  });
}

// Decoration: the numbers stand beside it as text.
export function StackedBar({ parts, whole, size }: { parts: readonly Part[]; whole: number; size?: 'large' | 'small' }) {
  return (
    <svg class={`bar-line ${size ?? ''}`} aria-hidden="true">
      {partsOf(parts, whole).map((part) => <rect class={`fill ${part.kind}`} x={`${part.x}%`} width={`${part.width}%`} height="100%" />)}
    </svg>
  );
}

interface MeterProps {
  label: string;
  value: number;
  max: number;
  text: string;
  kind?: string;
  children?: ComponentChildren;  // Behind the label.
}

export function Meter({ label, value, max, text, kind = 'accent', children }: MeterProps) {
  return (
    <div class="meter">
      <span class="meter-name">{label}{children}</span>
      <span class="about">{text}</span>
      <svg class="bar-line" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={max || 1} aria-valuenow={Math.min(value, max)} aria-valuetext={text}>
        <rect class={`fill ${kind}`} width={`${percentOf(value, max)}%`} height="100%" />
      </svg>
    </div>
  );
}
