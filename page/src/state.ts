// What all views share: the connection, the models, the sessions and the place in the page.
import { computed, signal } from '@preact/signals';
import { Api, ApiError, clipped, isAborted, isUnknown, messageOf } from './api.ts';
import { remember } from './store.ts';
import { tellTabs } from './tabs.ts';
import type { MetadataChanges, Model, PullState, Session } from './types.ts';
import { visibleText } from './visible_text.ts';

// The key stays in memory, and is gone with the page, unless its user lets this tab keep it.
const kKeyName = 'uma.key';
export const apiKey = signal(keptKey());

function keptKey(): string {
  try {
    return sessionStorage.getItem(kKeyName) ?? '';
  } catch {
    return '';
  }
}

export function useKey(key: string, isKept: boolean) {
  apiKey.value = key;
  try {
    if (isKept) sessionStorage.setItem(kKeyName, key);
    else sessionStorage.removeItem(kKeyName);
  } catch {
    // Storage is forbidden: the key lasts as long as the page.
  }
}
export const warning = signal('');  // What umad served otherwise than asked for.
export const api = new Api('', () => apiKey.value, (text) => (warning.value = text));

export type Connection = 'starting' | 'ok' | 'lost' | 'needs key' | 'refused';
export const connection = signal<Connection>('starting');
export const connectionProblem = signal('');
export const version = signal('');

export const models = signal<Model[]>([]);
export const pulls = signal<readonly PullState[]>([]);  // Of all tabs and programs.
export const mayAdminister = signal(true);  // Whether the key may change models and keys.
const kSessionsAtOnce = 100;
const kFoundMax = 1000;
// What umad takes for a search (docs/protocol/socket.md, Lists).
const kSearchWordsMax = 8;
const kSearchBytesMax = 256;
const listed = signal<readonly Session[]>([]);  // Those used last.
const found = signal<readonly Session[]>([]);  // Of a search among the others.
const visited = signal<Session | null>(null);  // The one that is open, if it was not listed.
export const hasOlder = signal(false);  // There are more than are listed.
let older = '';  // Where those begin.
export const allSessions = computed(() => {
  const all = new Map<string, Session>();
  for (const session of [...listed.value, ...found.value, ...(visited.value ? [visited.value] : [])]) {
    if (!all.has(session.session_id)) all.set(session.session_id, session);
  }
  return [...all.values()];
});
// Those that are conversations. A session in text mode has no turns of a user and a model.
export const sessions = computed(() => allSessions.value.filter((session) => session.mode === 'chat'));

export const sessionOf = (id: string) => sessions.value.find((session) => session.session_id === id);

export const chatModels = computed(() => models.value.filter((model) => model.capabilities.includes('completion')));
export const pictureModels = computed(() => models.value.filter((model) => model.capabilities.includes('image')));
export const modelOf = (id: string) => models.value.find((model) => model.id === id);

// The text of the live region, for screen readers.
export const announcement = signal('');
export const announce = (text: string) => {
  const shown = visibleText(text);
  announcement.value = announcement.value === shown ? `${shown}\u00a0` : shown;
};

// --- The place: #/talk/ID, #/see, #/manage/models

const placeOf = (hash: string) => hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);
const readPlace = () => {
  try {
    return placeOf(location.hash);
  } catch {
    return [];
  }
};
export const place = signal<string[]>(readPlace());
export const view = computed(() => place.value[0] || 'talk');
// The id of the open session. An address with anything else than an id opens none.
export const openId = computed(() => (view.value === 'talk' && /^[0-9a-f]{32}$/.test(place.value[1] ?? '') ? place.value[1]! : ''));
export const goTo = (...parts: string[]) => {
  location.hash = `#/${parts.map(encodeURIComponent).join('/')}`;
};

export function followPlace() {
  addEventListener('hashchange', () => {
    place.value = readPlace();
  });
}

// --- Reading from the daemon

// A failed request says what is wrong with the connection. Returns the message for people.
export function noteFailure(error: unknown): string {
  const message = messageOf(error);
  if (error instanceof TypeError) connection.value = 'lost';
  if (error instanceof ApiError && error.status === 401) connection.value = 'needs key';
  if (error instanceof ApiError && error.status === 403 && connection.value === 'starting') connection.value = 'refused';
  connectionProblem.value = message;
  return message;
}

export async function refreshModels() {
  const list = await api.listModels();
  models.value = list.data;
  pulls.value = list.uma?.pulls ?? [];
  mayAdminister.value = list.uma !== undefined;
}

let refreshes = 0;

// Reads the sessions used last. Older ones that were read stay.
export async function refreshSessions() {
  const refresh = ++refreshes;
  const page = await api.listSessions('', kSessionsAtOnce);
  if (refresh !== refreshes) return;  // A later answer is newer.
  const known = new Set(page.data.map((session) => session.session_id));
  const oldest = page.data.at(-1)?.last_used_s ?? 0;
  const isBehind = page.has_more && listed.value.some((session) => known.has(session.session_id));  // Else others lie between.
  const kept = isBehind ? listed.value.filter((session) => session.last_used_s <= oldest && !known.has(session.session_id)) : [];
  listed.value = [...page.data, ...kept];
  if (kept.length > 0) return;
  hasOlder.value = page.has_more;
  older = page.next ?? '';
}

// Reads the next ones behind those that are listed.
export async function listOlder() {
  let page;
  let refresh;
  do {
    refresh = refreshes;
    page = await api.listSessions(older, kSessionsAtOnce);
  } while (refresh !== refreshes);  // It may have a session that was deleted meanwhile.
  const known = new Set(listed.value.map((session) => session.session_id));
  listed.value = [...listed.value, ...page.data.filter((session) => !known.has(session.session_id))];
  hasOlder.value = page.has_more;
  older = page.next ?? '';
}

// Reads the open session, if it is not listed.
export async function visit(id: string) {
  if (allSessions.value.some((session) => session.session_id === id)) return;
  const session = await api.getSession(id);
  if (openId.value === id) visited.value = session;
}

let searches = 0;

// Looks for sessions that are not listed, if there are any: for a whole id, or the words of names, titles and tags that umad finds.
export async function searchOlder(query: string) {
  const search = ++searches;
  const all: Session[] = [];
  const words = hasOlder.value ? query.toLowerCase().split(/\s+/).map((word) => word.replace(/^#/, '')).filter((word) => word !== '') : [];
  const id = words.find((word) => /^[0-9a-f]{32}$/.test(word));
  if (id) all.push(...await api.getSession(id).then((session) => [session], (error) => (isUnknown(error) ? [] : Promise.reject(error))));
  let hasMore = words.length > 0 && !id;
  for (let after = ''; hasMore && search === searches && all.length < kFoundMax;) {
    const page = await api.searchSessions(after, clipped(words.slice(0, kSearchWordsMax).join(' '), kSearchBytesMax));
    all.push(...page.data);
    hasMore = page.has_more;
    after = page.next ?? '';
  }
  if (search === searches) found.value = all;
}

// Shows a session as an answer has it. A list that is on its way may have it as it was, so another one is read.
function showSession(session: Session) {
  void refreshSessions().catch(noteFailure);
  const replaced = (all: readonly Session[]) => all.map((each) => (each.session_id === session.session_id ? session : each));
  listed.value = replaced(listed.value);
  found.value = replaced(found.value);
  if (visited.value?.session_id === session.session_id) visited.value = session;
  tellTabs({ type: 'changed', session: session.session_id });
}

export async function renameSession(id: string, name: string) {
  showSession(await api.renameSession(id, name));
}

export async function changeMetadata(id: string, changes: MetadataChanges) {
  showSession(await api.setMetadata(id, changes));
}

export async function deleteSession(id: string) {
  await api.deleteSession(id);
  forgetSession(id);
  tellTabs({ type: 'deleted', session: id });
}

export function forgetSession(id: string) {
  ++refreshes;  // A list that is on its way still has it.
  for (const kept of ['draft', 'settings']) remember(`${kept}.${id}`, undefined);
  listed.value = listed.value.filter((session) => session.session_id !== id);
  found.value = found.value.filter((session) => session.session_id !== id);
  if (visited.value?.session_id === id) visited.value = null;
}

export async function refresh() {
  try {
    await Promise.all([refreshModels(), refreshSessions()]);
    if (version.value === '') version.value = await api.getVersion();
    connection.value = 'ok';
  } catch (error) {
    if (!isAborted(error)) noteFailure(error);
  }
}

const kLostMs = 2000;
const kInUseMs = 10_000;
const kUnusedMs = 60_000;

// Keeps the lists fresh while the page is visible, rarely while nobody touches it, and notices that the daemon is gone or back.
export function keepFresh() {
  let readAt = 0;
  let touchedAt = Date.now();
  const again = async () => {
    const everyMs = connection.value === 'lost' ? kLostMs : Date.now() < touchedAt + kUnusedMs ? kInUseMs : kUnusedMs;
    if (pulls.value.length > 0 && connection.value === 'ok') await refreshModels().catch(noteFailure);
    if (document.visibilityState === 'visible' && connection.value !== 'needs key' && Date.now() - readAt >= everyMs) {
      await refresh();
      readAt = Date.now();
    }
    setTimeout(again, 1000);
  };
  void again();
  for (const name of ['pointermove', 'keydown', 'focus']) addEventListener(name, () => (touchedAt = Date.now()), { passive: true });
  document.addEventListener('visibilitychange', () => {
    if (document.visibilityState === 'visible') void refresh();
  });
}
