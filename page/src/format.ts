// Numbers, sizes and times as text.

const kCounts = new Intl.NumberFormat('en-GB', { maximumFractionDigits: 0 });

export const count = (value: number) => kCounts.format(value);

export const counted = (value: number, one: string, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

export function bytes(value: number): string {
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    ++unit;
  }
  return unit === 0 ? `${count(value)} bytes` : `${value < 10 ? value.toFixed(1) : count(value)} ${units[unit]}`;
}

export function milliseconds(value: number): string {
  if (value < 1) return 'under 1 ms';
  return value < 1000 ? `${count(value)} ms` : seconds(value / 1000);
}

export function seconds(value: number): string {
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${count(value)} s`;
  if (value < 7200) return `${count(value / 60)} min`;
  if (value < 172800) return `${count(value / 3600)} h`;
  return `${count(value / 86400)} days`;
}

export function ago(unixSeconds: number, nowMs = Date.now()): string {
  const age = Math.max(0, nowMs / 1000 - unixSeconds);
  return age < 10 ? 'now' : `${seconds(Math.floor(age))} ago`;
}

export const rate = (value: number | null) => (value === null ? '–' : value < 10 ? value.toFixed(1) : count(value));
export const percent = (value: number) => `${count(value * 100)} %`;
