// What the tabs of one browser tell each other.

export type TabMessage =
  | { type: 'changed'; session: string }  // Its turns or title.
  | { type: 'deleted'; session: string }
  | { type: 'begun'; session: string };  // A reply, which other tabs can read, too.

const channel = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel('uma');

export const tellTabs = (message: TabMessage) => channel?.postMessage(message);

export function hearTabs(take: (message: TabMessage) => void) {
  channel?.addEventListener('message', (event) => take(event.data as TabMessage));
}
