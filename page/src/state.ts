// What all views share: the connection, the models, the sessions and the place in the page.
import { computed, signal } from '@preact/signals';
import { Api, ApiError, clipped, isAborted, isUnknown, messageOf } from './api.ts';
import { remember } from './store.ts';
import { tellTabs } from './tabs.ts';
import type { MetadataChanges, Model, Session } from './types.ts';
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
const kSessionsMax = 5000;
const kFoundMax = 1000;
// What umad takes for a search (docs/protocol/socket.md, Lists).
const kSearchWordsMax = 8;
const kSearchBytesMax = 256;
const listed = signal<readonly Session[]>([]);  // Those used last.
const found = signal<readonly Session[]>([]);  // Of a search among the others.
export const hasOlder = signal(false);  // There are more than are listed.
export const allSessions = computed(() => {
  const known = new Set(listed.value.map((session) => session.session_id));
  return [...listed.value, ...found.value.filter((session) => !known.has(session.session_id))];
});
// Those that are conversations. A session in text mode has no turns of a user and a model.
export const sessions = computed(() => allSessions.value.filter((session) => session.mode === 'chat'));

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
  models.value = await api.listModels();
}

let refreshes = 0;

export async function refreshSessions() {
  const refresh = ++refreshes;
  const all: Session[] = [];
  let hasMore = true;
  for (let after = ''; hasMore && all.length < kSessionsMax;) {
    const page = await api.listSessions(after);
    all.push(...page.data);
    hasMore = page.has_more;
    after = page.next ?? '';
  }
  if (refresh !== refreshes) return;  // A later answer is newer.
  listed.value = all;
  hasOlder.value = hasMore;
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
    const page = await api.listSessions(after, clipped(words.slice(0, kSearchWordsMax).join(' '), kSearchBytesMax));
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
  ++refreshes;  // A list that is on its way still has it.
  for (const kept of ['draft', 'settings']) remember(`${kept}.${id}`, undefined);
  listed.value = listed.value.filter((session) => session.session_id !== id);
  found.value = found.value.filter((session) => session.session_id !== id);
  tellTabs({ type: 'changed', session: id });
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

// Keeps the lists fresh while the page is visible, and notices that the daemon is gone or back.
export function keepFresh() {
  let readAt = 0;
  const again = async () => {
    const everyMs = connection.value === 'lost' ? 2000 : 10_000;
    if (document.visibilityState === 'visible' && connection.value !== 'needs key' && Date.now() - readAt >= everyMs) {
      await refresh();
      readAt = Date.now();
    }
    setTimeout(again, 1000);
  };
  void again();
  document.addEventListener('visibilitychange', () => {
    if (document.visibilityState === 'visible') void refresh();
  });
}
