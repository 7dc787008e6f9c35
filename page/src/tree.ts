// Sessions as a forest: a fork stands below the session that it was forked from.
import type { Session } from './types.ts';

export interface TreeRow {
  session: Session;
  depth: number;
  versions: readonly Session[];  // All of its conversation.
}

type ById = ReadonlyMap<string, Session>;
const byId = (sessions: readonly Session[]): ById => new Map(sessions.map((session) => [session.session_id, session]));

export const titleOf = (session: Session) => session.name || session.metadata.title || `Session ${session.session_id.slice(0, 8)}`;

export const tagsOf = (session: Session): string[] =>
  (session.metadata.tags ?? '').split(',').map((tag) => tag.trim()).filter((tag) => tag !== '');

// The group of each session: that of its parent if it `isPart` of it, its own otherwise. `nameOf` names the group of a session whose
// parent is gone.
function groupsOf(sessions: readonly Session[], known: ById, isPart: (session: Session) => boolean, nameOf: (session: Session) => string) {
  const groups = new Map<string, string>();
  for (const session of sessions) {
    const path: Session[] = [];  // A chain of forks may be too long for recursion.
    for (let at: Session | undefined = session; at && !groups.has(at.session_id); at = isPart(at) ? known.get(at.parent_id) : undefined) path.push(at);
    for (const each of path.reverse()) {
      groups.set(each.session_id, isPart(each) ? groups.get(each.parent_id) ?? nameOf(each) : each.session_id);
    }
  }
  return groups;
}

// A fork of a version has its metadata, too, but not its mark: that names the version's own parent.
export const isVersion = ({ metadata, parent_id }: Session) => !!metadata.version_of && metadata.made_from === parent_id;

// The session with which the conversation began.
export const firstVersionOf = (session: Session) => (isVersion(session) ? session.metadata.version_of! : session.session_id);

// The conversation that each session is a version of, named by the session with which it began.
const conversationsOf = (sessions: readonly Session[], known: ById) =>
  groupsOf(sessions, known, isVersion, firstVersionOf);

// All versions of the session's conversation.
export function versionsOf(session: Session, sessions: readonly Session[]): Session[] {
  const conversations = conversationsOf(sessions, byId(sessions));
  const own = conversations.get(session.session_id);
  return sessions.filter((each) => conversations.get(each.session_id) === own);
}

// The sessions that were forked from one another, this one among them.
export function familyOf(id: string, sessions: readonly Session[]): Session[] {
  const families = groupsOf(sessions, byId(sessions), ({ parent_id }) => parent_id !== '', ({ parent_id }) => parent_id);
  const own = families.get(id);
  return own === undefined ? [] : sessions.filter((each) => families.get(each.session_id) === own);
}

// The rows of the list, the last used trees first. A conversation has one row, for its version that is `open`, or was used last.
export function treeRows(sessions: readonly Session[], open = ''): TreeRow[] {
  const known = byId(sessions);
  const conversations = conversationsOf(sessions, known);
  const shown = new Map<string, { session: Session; versions: Session[] }>();
  for (const session of sessions) {
    const id = conversations.get(session.session_id)!;
    const row = shown.get(id);
    if (!row) {
      shown.set(id, { session, versions: [session] });
      continue;
    }
    row.versions.push(session);
    const isLater = session.last_used_s > row.session.last_used_s && row.session.session_id !== open;
    if (isLater || session.session_id === open) row.session = session;
  }
  const children = new Map<string, string[]>();
  const roots: string[] = [];
  for (const id of shown.keys()) {
    const first = known.get(id);
    const parent = conversations.get(first ? parentOf(first, known) : '') ?? id;
    const siblings = children.get(parent);
    if (parent === id) roots.push(id);
    else if (siblings) siblings.push(id);
    else children.set(parent, [id]);
  }
  const used = new Map<string, number>();
  // Depth first with a stack of its own: a chain of forks may be long.
  const order: string[] = [];
  const pending = [...roots];
  while (pending.length > 0) {
    const id = pending.pop()!;
    order.push(id);
    pending.push(...(children.get(id) ?? []));
  }
  for (const id of order.reverse()) {
    used.set(id, Math.max(shown.get(id)!.session.last_used_s, ...(children.get(id) ?? []).map((child) => used.get(child) ?? 0)));
  }
  const latestLast = (a: string, b: string) => (used.get(a) ?? 0) - (used.get(b) ?? 0) || b.localeCompare(a);
  const rows: TreeRow[] = [];
  const stack = roots.sort(latestLast).map((id) => ({ id, depth: 0 }));
  while (stack.length > 0) {
    const { id, depth } = stack.pop()!;
    rows.push({ ...shown.get(id)!, depth });
    for (const child of (children.get(id) ?? []).sort(latestLast)) stack.push({ id: child, depth: depth + 1 });
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

// The rows of which a version has every word in its title, tags or model, or as the beginning of its id, and the rows above them, so
// that the tree stays whole. A row shows the version that was found.
export function searchRows(rows: readonly TreeRow[], query: string): TreeRow[] {
  const words = query.toLowerCase().split(/\s+/).filter((word) => word !== '');
  if (words.length === 0) return [...rows];
  const found: TreeRow[] = [];
  let depthWanted = -1;  // The rows above the last match that are still missing have a smaller depth.
  for (let i = rows.length - 1; i >= 0; --i) {
    const row = rows[i]!;
    const { depth } = row;
    const match = [row.session, ...row.versions].find((session) => {
      const text = [session.name, session.metadata.title ?? '', ...tagsOf(session).map((tag) => `#${tag}`), session.model].join(' ').toLowerCase();
      return words.every((word) => text.includes(word) || (isIdBeginning(word) && session.session_id.startsWith(word)));
    });
    if (match || depth < depthWanted) {
      found.push(match ? { ...row, session: match } : row);
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
