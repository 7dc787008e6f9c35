// The page's icons: lines on a grid of 16, in the colour of the text. They are decoration: what holds one has a name.

const kPaths = {
  plus: 'M8 3v10M3 8h10',
  search: 'M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10ZM14 14l-3.4-3.4',
  import: 'M8 2v8M4.8 7 8 10.2 11.2 7M2.5 13.5h11',
  send: 'M8 13.2V3M3.6 7.2 8 2.8l4.4 4.4',
  stop: 'M4.5 4.5h7v7h-7Z',
  picture: 'M2.5 3h11v10h-11ZM2.8 11.6 6.2 8l2.6 2.6 1.7-1.6 2.8 2.7M10.4 6.1h.1',
  sliders: 'M2 5h6.5M12.5 5H14M2 11h1.5M7.5 11H14M10.5 3v4M5.5 9v4',
  copy: 'M5.5 5.5h8v8h-8ZM10.5 5.3V2.5h-8v8h2.8',
  edit: 'M2.8 13.2l.6-3L10.9 2.7l2.4 2.4-7.5 7.5ZM9.2 4.4l2.4 2.4',
  again: 'M13.2 8A5.2 5.2 0 1 1 11.4 4.1M13.3 1.9v3.2h-3.2',
  text: 'M3 3.5h10M3 8h10M3 12.5h6',
  rewind: 'M6 3.5 2.5 7 6 10.5M2.7 7h6.8a4 4 0 0 1 0 8H8',
  list: 'M2.5 3h11v10h-11ZM6.5 3.2v9.6',
  chevron: 'M6 3.5 10.5 8 6 12.5',
  close: 'M3.5 3.5l9 9M12.5 3.5l-9 9',
  spark: 'M8 2l1.5 4.5L14 8l-4.5 1.5L8 14l-1.5-4.5L2 8l4.5-1.5Z',
  tool: 'M9.8 6.2 13 3a3.6 3.6 0 0 1-4.7 4.7L4 12.9a1.3 1.3 0 0 1-1.9-1.9l5.2-4.3A3.6 3.6 0 0 1 12 2L8.9 5.2Z',
  contrast: 'M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2ZM8 2v12M8 4.5h4.6M8 8h6M8 11.5h4.6',
  down: 'M8 3v10M3.6 8.8 8 13.2l4.4-4.4',
  fork: 'M4 5.5v5M4 5.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3ZM4 13.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3ZM12 5.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3ZM12 5.5c0 2.8-4.5 2.2-7.6 5',
} as const;

export type IconName = keyof typeof kPaths;

export function Icon({ name }: { name: IconName }) {
  return <svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d={kPaths[name]} /></svg>;
}

// The mark of uma-serve: the three tiers of memory.
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 24 24" aria-hidden="true">
      <rect class="hot" x="3" y="3" width="18" height="5" rx="2.5" />
      <rect class="warm" x="3" y="9.5" width="13" height="5" rx="2.5" />
      <rect class="cold" x="3" y="16" width="8" height="5" rx="2.5" />
    </svg>
  );
}
