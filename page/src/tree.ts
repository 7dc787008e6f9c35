// Sessions as a forest: a fork stands below the session that it was forked from.
import type { Metadata, Session } from './types.ts';

export interface TreeRow {
  session: Session;
  depth: number;
}

export type MetadataOf = (id: string) => Metadata | undefined;

export const titleOf = (session: Session, metadata?: Metadata) =>
  metadata?.title || session.name || `Session ${session.session_id.slice(0, 8)}`;

export const tagsOf = (metadata?: Metadata): string[] =>
  (metadata?.tags ?? '').split(',').map((tag) => tag.trim()).filter((tag) => tag !== '');

// The rows of the list, the last used trees first. A parent that is unknown, or that would close a circle, is ignored.
export function treeRows(sessions: readonly Session[], metadata: MetadataOf): TreeRow[] {
  const known = new Set(sessions.map((session) => session.session_id));
  const children = new Map<string, Session[]>();
  const roots: Session[] = [];
  for (const session of sessions) {
    const parent = metadata(session.session_id)?.forked_from;
    if (!parent || !known.has(parent) || closesCircle(session.session_id, metadata)) {
      roots.push(session);
      continue;
    }
    const siblings = children.get(parent);
    if (siblings) siblings.push(session);
    else children.set(parent, [session]);
  }
  const used = new Map<string, number>();
  const rows: TreeRow[] = [];
  // Depth first with a stack of its own: a chain of forks may be long.
  const order: Session[] = [];
  const pending = [...roots];
  while (pending.length > 0) {
    const session = pending.pop()!;
    order.push(session);
    pending.push(...(children.get(session.session_id) ?? []));
  }
  for (const session of order.reverse()) {
    const below = children.get(session.session_id) ?? [];
    used.set(session.session_id, Math.max(session.last_used_s, ...below.map((child) => used.get(child.session_id) ?? 0)));
  }
  const latestLast = (a: Session, b: Session) =>
    (used.get(a.session_id) ?? 0) - (used.get(b.session_id) ?? 0) || b.session_id.localeCompare(a.session_id);
  const stack: TreeRow[] = roots.sort(latestLast).map((session) => ({ session, depth: 0 }));
  while (stack.length > 0) {
    const row = stack.pop()!;
    rows.push(row);
    const below = (children.get(row.session.session_id) ?? []).sort(latestLast);
    for (const session of below) stack.push({ session, depth: row.depth + 1 });
  }
  return rows;
}

function closesCircle(id: string, metadata: MetadataOf): boolean {
  const seen = new Set([id]);
  for (let at = metadata(id)?.forked_from; at; at = metadata(at)?.forked_from) {
    if (at === id) return true;
    if (seen.has(at)) return false;  // The circle is above, and its own members end it.
    seen.add(at);
  }
  return false;
}

// The rows whose title, tags, model or id contain every word, and the rows above them, so that the tree stays whole.
export function searchRows(rows: readonly TreeRow[], metadata: MetadataOf, query: string): TreeRow[] {
  const words = query.toLowerCase().split(/\s+/).filter((word) => word !== '');
  if (words.length === 0) return [...rows];
  const found: TreeRow[] = [];
  let depthWanted = -1;  // The rows above the last match that are still missing have a smaller depth.
  for (let i = rows.length - 1; i >= 0; --i) {
    const row = rows[i]!;
    const about = metadata(row.session.session_id);
    const text = [titleOf(row.session, about), ...tagsOf(about).map((tag) => `#${tag}`), row.session.name, row.session.model,
      row.session.session_id].join(' ').toLowerCase();
    const matches = words.every((word) => text.includes(word));
    if (matches || row.depth < depthWanted) {
      found.push(row);
      depthWanted = row.depth;
    }
  }
  return found.reverse();
}

export interface Branches {
  all: Session[];  // The oldest first.
  at: number;  // The one that has the turn of this session.
}

// The sessions that have different versions of a turn, as far as they are branches of one another.
export function branchesAt(session: Session, turn: number, sessions: readonly Session[], metadata: MetadataOf): Branches {
  const parent = branchParent(session.session_id, turn, metadata);
  const all = sessions
    .filter((other) => {
      const about = metadata(other.session_id);
      return other.session_id === parent || (about?.forked_from === parent && about.forked_at_turn === String(turn));
    })
    // Sessions of the same second: the parent is older than its branches.
    .sort((a, b) => a.created_s - b.created_s || Number(b.session_id === parent) - Number(a.session_id === parent) ||
      a.session_id.localeCompare(b.session_id));
  const seen = new Set<string>();
  for (let id: string | undefined = session.session_id; id && !seen.has(id); id = metadata(id)?.forked_from) {
    seen.add(id);
    const at = all.findIndex((other) => other.session_id === id);
    if (at >= 0) return { all, at };
  }
  return { all, at: 0 };
}

// Where a branch at `turn` of a session begins to differ: the session itself, or the ancestor with which it shares all turns
// before this one.
export function branchParent(id: string, turn: number, metadata: MetadataOf): string {
  const seen = new Set<string>();
  while (!seen.has(id)) {
    seen.add(id);
    const about = metadata(id);
    if (!about?.forked_from || about.forked_at_turn === undefined || Number(about.forked_at_turn) < turn) return id;
    id = about.forked_from;
  }
  return id;
}
