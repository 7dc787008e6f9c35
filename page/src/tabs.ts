// What the tabs of one browser tell each other.

export type TabMessage =
  | { type: 'changed'; session: string }  // Its turns, title or existence.
  | { type: 'tail'; session: string; text: string; reasoning: string }  // The reply so far, a few times a second.
  | { type: 'stop'; session: string };  // The tab that reads the reply should stop it.

const channel = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel('uma');

export const tellTabs = (message: TabMessage) => channel?.postMessage(message);

export function hearTabs(take: (message: TabMessage) => void) {
  channel?.addEventListener('message', (event) => take(event.data as TabMessage));
}
