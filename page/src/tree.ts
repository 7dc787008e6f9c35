// Sessions as a forest: a fork stands below the session that it was forked from.
import type { Session } from './types.ts';

export interface TreeRow {
  session: Session;
  depth: number;
}

type ById = ReadonlyMap<string, Session>;
const byId = (sessions: readonly Session[]): ById => new Map(sessions.map((session) => [session.session_id, session]));

export const titleOf = (session: Session) => session.name || session.metadata.title || `Session ${session.session_id.slice(0, 8)}`;

export const tagsOf = (session: Session): string[] =>
  (session.metadata.tags ?? '').split(',').map((tag) => tag.trim()).filter((tag) => tag !== '');

// The rows of the list, the last used trees first.
export function treeRows(sessions: readonly Session[]): TreeRow[] {
  const known = byId(sessions);
  const children = new Map<string, Session[]>();
  const roots: Session[] = [];
  for (const session of sessions) {
    const parent = parentOf(session, known);
    const siblings = children.get(parent);
    if (parent === '') roots.push(session);
    else if (siblings) siblings.push(session);
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

// The session below which a fork stands: the one that it differs from, else the one that it was forked from, if that is known.
function parentOf(session: Session, known: ById): string {
  if (session.parent_id === '') return '';
  const parent = branchParent(session.parent_id, session.fork_turn, known);
  return [parent, session.parent_id].find((id) => known.has(id)) ?? '';
}

// Eight digits of an id are hardly ever part of a title.
const isIdBeginning = (word: string) => /^[0-9a-f]{8,}$/.test(word);

// The rows whose title, tags or model contain every word, or whose id begins with it, and the rows above them, so that the tree stays whole.
export function searchRows(rows: readonly TreeRow[], query: string): TreeRow[] {
  const words = query.toLowerCase().split(/\s+/).filter((word) => word !== '');
  if (words.length === 0) return [...rows];
  const found: TreeRow[] = [];
  let depthWanted = -1;  // The rows above the last match that are still missing have a smaller depth.
  for (let i = rows.length - 1; i >= 0; --i) {
    const { session, depth } = rows[i]!;
    const text = [session.name, session.metadata.title ?? '', ...tagsOf(session).map((tag) => `#${tag}`), session.model].join(' ').toLowerCase();
    const matches = words.every((word) => text.includes(word) || (isIdBeginning(word) && session.session_id.startsWith(word)));
    if (matches || depth < depthWanted) {
      found.push(rows[i]!);
      depthWanted = depth;
    }
  }
  return found.reverse();
}

export interface Branches {
  all: Session[];  // The oldest first.
  at: number;  // The one that has the turn of this session.
}

// The sessions that have different versions of a turn, as far as they are branches of one another and have not dropped it.
export function branchesAt(session: Session, turn: number, sessions: readonly Session[]): Branches {
  const known = byId(sessions);
  const parent = branchParent(session.session_id, turn, known);
  const all = sessions
    .filter((other) => other.dropped_turns <= turn && (other.session_id === parent ||
      (other.parent_id !== '' && other.fork_turn === turn && branchParent(other.parent_id, turn, known) === parent)))
    // Sessions of the same second: the parent is older than its branches.
    .sort((a, b) => a.created_s - b.created_s || Number(b.session_id === parent) - Number(a.session_id === parent) ||
      a.session_id.localeCompare(b.session_id));
  for (let one: Session | undefined = session; one; one = known.get(one.parent_id)) {
    const at = all.indexOf(one);
    if (at >= 0) return { all, at };
  }
  return { all, at: 0 };
}

// Where a branch at `turn` of a session begins to differ: the session itself, or the ancestor with which it shares all turns
// before this one.
export function branchParent(id: string, turn: number, known: ById): string {
  for (let session = known.get(id); session && session.parent_id !== '' && session.fork_turn >= turn; session = known.get(id)) {
    id = session.parent_id;
  }
  return id;
}
