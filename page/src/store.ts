// Small values that outlive the page, in the browser's local storage. Never a key, and never the text of a conversation
// except an unsent draft.

const kPrefix = 'uma.';
const kEntriesMax = 300;

export function recall<T>(name: string, otherwise: T): T {
  try {
    const text = localStorage.getItem(kPrefix + name);
    return text === null ? otherwise : (JSON.parse(text).value as T);
  } catch {
    return otherwise;
  }
}

// Keeps a value; undefined removes it. The oldest entries make room.
export function remember(name: string, value: unknown) {
  try {
    if (value === undefined) return localStorage.removeItem(kPrefix + name);
    localStorage.setItem(kPrefix + name, JSON.stringify({ at: Date.now(), value }));
    const names = Object.keys(localStorage).filter((each) => each.startsWith(kPrefix));
    if (names.length <= kEntriesMax) return;
    const ageOf = (each: string) => Number(/^\{"at":(\d+)/.exec(localStorage.getItem(each) ?? '')?.[1] ?? 0);
    names.sort((a, b) => ageOf(a) - ageOf(b));
    for (const each of names.slice(0, names.length - kEntriesMax)) localStorage.removeItem(each);
  } catch {
    // Storage is full or forbidden: the value lasts as long as the page.
  }
}
