// The list of sessions in groups by their age.
import type { TreeRow } from './tree.ts';

const kDayMs = 86_400_000;

export function ageGroup(unixSeconds: number, nowMs: number): string {
  const midnight = new Date(nowMs).setHours(0, 0, 0, 0);
  const time = unixSeconds * 1000;
  if (time >= midnight) return 'Today';
  if (time >= midnight - kDayMs) return 'Yesterday';
  if (time >= midnight - 7 * kDayMs) return 'Last 7 days';
  if (time >= midnight - 30 * kDayMs) return 'Last 30 days';
  return 'Older';
}

// The heading above each row, empty where there is none. A tree of forks stands together, at its last use.
export function groupHeadings(rows: readonly TreeRow[], nowMs: number): string[] {
  let last = '';
  return rows.map((row, i) => {
    if (row.depth > 0) return '';
    let used = row.session.last_used_s;
    for (let at = i + 1; at < rows.length && rows[at]!.depth > 0; ++at) used = Math.max(used, rows[at]!.session.last_used_s);
    const group = ageGroup(used, nowMs);
    if (group === last) return '';
    last = group;
    return group;
  });
}
