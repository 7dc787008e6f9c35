// What all views share: the connection, the models, the sessions and the place in the page.
import { computed, signal } from '@preact/signals';
import { Api, ApiError, isAborted, messageOf } from './api.ts';
import { tellTabs } from './tabs.ts';
import type { Metadata, Model, Session } from './types.ts';
import { visibleText } from './visible_text.ts';

// The key stays in memory only: it is gone with the page.
export const apiKey = signal('');
export const warning = signal('');  // What umad served otherwise than asked for.
export const api = new Api('', () => apiKey.value, (text) => (warning.value = text));

export type Connection = 'starting' | 'ok' | 'lost' | 'needs key' | 'refused';
export const connection = signal<Connection>('starting');
export const connectionProblem = signal('');
export const version = signal('');

export const models = signal<Model[]>([]);
export const allSessions = signal<Session[]>([]);
// Those that are conversations. A session in text mode has no turns of a user and a model.
export const sessions = computed(() => allSessions.value.filter((session) => session.mode === 'chat'));
export const metadata = signal<ReadonlyMap<string, Metadata>>(new Map());
export const metadataOf = (id: string) => metadata.value.get(id);

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

const kSessionsMax = 5000;
const kMetadataAtOnce = 4;
const kMetadataMax = 500;  // Sessions used longer ago show their names only.
const kMetadataShownEach = 25;

export async function refreshModels() {
  models.value = await api.listModels();
}

export async function refreshSessions() {
  const all: Session[] = [];
  for (let hasMore = true, after = ''; hasMore && all.length < kSessionsMax;) {
    const page = await api.listSessions(after);
    all.push(...page.data);
    after = page.data.at(-1)?.session_id ?? '';
    hasMore = page.has_more && page.data.length > 0;
  }
  allSessions.value = all;
  void readMetadata();
}

const metadataIsRead = new Set<string>();

// Reads the metadata of sessions that have none yet, the last used first, a few at once.
async function readMetadata() {
  const known = new Set(sessions.value.map((session) => session.session_id));
  if ([...metadata.value.keys()].some((id) => !known.has(id))) {
    metadata.value = new Map([...metadata.value].filter(([id]) => known.has(id)));
  }
  const wanted = sessions.value.filter((session) => !metadataIsRead.has(session.session_id))
    .sort((a, b) => b.last_used_s - a.last_used_s).map((session) => session.session_id)
    .slice(0, Math.max(0, kMetadataMax - metadataIsRead.size));
  for (const id of wanted) metadataIsRead.add(id);
  let read: [string, Metadata][] = [];
  const show = () => {
    if (read.length > 0) metadata.value = new Map([...metadata.value, ...read]);
    read = [];
  };
  const next = async () => {
    for (let id = wanted.shift(); id; id = wanted.shift()) {
      try {
        read.push([id, await api.getMetadata(id)]);
        if (read.length >= kMetadataShownEach) show();
      } catch {
        metadataIsRead.delete(id);  // Asked for again with the next list.
      }
    }
  };
  await Promise.all(Array.from({ length: kMetadataAtOnce }, next));
  show();
}

export function keepMetadata(id: string, about: Metadata) {
  metadataIsRead.add(id);
  metadata.value = new Map(metadata.value).set(id, about);
}

export async function changeMetadata(id: string, change: Metadata) {
  // Read anew: another tab may have changed it.
  keepMetadata(id, await api.setMetadata(id, { ...(await api.getMetadata(id)), ...change }));
  tellTabs({ type: 'changed', session: id });
}

export function forgetMetadata(id: string) {
  metadataIsRead.delete(id);
}

export async function deleteSession(id: string) {
  await api.deleteSession(id);
  allSessions.value = allSessions.value.filter((session) => session.session_id !== id);
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
