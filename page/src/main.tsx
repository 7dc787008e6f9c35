// The frame of the page: the views, the connection, keys.
import { signal, useSignal, useSignalEffect } from '@preact/signals';
import { type ComponentType, render } from 'preact';
import { useEffect } from 'preact/hooks';
import { followTabs } from './conversation.ts';
import { percent } from './format.ts';
import { isLive, snapshot, watch } from './live.ts';
import { showTextsOnly } from './shown_texts.ts';
import {
  announcement, apiKey, connection, connectionProblem, followPlace, goTo, keepFresh, openId, place, pulls, refresh, sessionOf,
  useKey, version, view, warning,
} from './state.ts';
import { recall, remember } from './store.ts';
import { Icon, Mark } from './icons.tsx';
import { listIsOpen, Talk } from './talk.tsx';
import { titleOf } from './tree.ts';
import { Dialog, Problem } from './ui.tsx';
import { visibleText } from './visible_text.ts';

// Views that are not needed to talk are loaded when they are opened.
const kLaterViews: Record<string, () => Promise<ComponentType>> = {
  see: () => import('./see.tsx').then((module) => module.See),
  manage: () => import('./manage.tsx').then((module) => module.Manage),
};
const loadedViews = signal<Record<string, ComponentType>>({});

function LaterView({ name }: { name: string }) {
  const problem = useSignal('');
  useEffect(() => {
    if (loadedViews.value[name]) return;
    kLaterViews[name]!()
      .then((component) => (loadedViews.value = { ...loadedViews.value, [name]: component }))
      .catch(() => (problem.value = 'This view could not be loaded. Load the page again.'));
  }, [name]);
  const View = loadedViews.value[name];
  return <main id="main" class="page" tabIndex={-1}>{View ? <View /> : <p class="note">{problem.value || 'Loading…'}</p>}</main>;
}

function KeyDialog() {
  const key = useSignal('');
  const isKept = useSignal(false);
  return (
    <Dialog title="API key">
      <form onSubmit={(event) => {
        event.preventDefault();
        useKey(key.value.trim(), isKept.value);
        connection.value = 'starting';
        void refresh();
      }}>
        <p>This umad asks for a key. It stays in the memory of this page and is gone when the page is closed or loaded again.</p>
        {apiKey.value !== '' && <p class="problem" role="alert">{connectionProblem.value}</p>}
        <label>Key<input type="password" autocomplete="current-password" autofocus required onInput={(event) => (key.value = event.currentTarget.value)} /></label>
        <label class="check"><input type="checkbox" onChange={(event) => (isKept.value = event.currentTarget.checked)} /> Keep it until this tab is closed</label>
        <div class="buttons"><button class="main">Use</button></div>
      </form>
    </Dialog>
  );
}

const kThemes = { auto: 'as the system', light: 'light', dark: 'dark' } as const;
type Theme = keyof typeof kThemes;
const theme = signal<Theme>(recall<Theme>('theme', 'auto'));

function showTheme() {
  document.documentElement.dataset['theme'] = theme.value;
}

function ThemeButton() {
  const next = () => {
    const names = Object.keys(kThemes) as Theme[];
    theme.value = names[(names.indexOf(theme.value) + 1) % names.length]!;
    remember('theme', theme.value);
    showTheme();
  };
  const name = `Colours: ${kThemes[theme.value]}`;
  return <button type="button" class="quiet icon-only" title={name} onClick={next}><Icon name="contrast" /><span class="hidden">{name}</span></button>;
}

const kShortcuts = [
  ['Enter', 'sends the message'], ['Shift+Enter', 'begins a line'], ['Esc', 'stops the reply'], ['/ or Ctrl+K', 'searches sessions'],
  ['Alt+N', 'begins a session'], ['↑ ↓', 'move in the list of sessions'], ['Ctrl+Enter', 'sends an edited message'], ['?', 'shows these keys'],
] as const;
const shortcutsAreOpen = signal(false);

function Shortcuts() {
  const close = () => (shortcutsAreOpen.value = false);
  return (
    <Dialog title="Keys" onClose={close}>
      <dl class="shortcuts">{kShortcuts.map(([keys, what]) => <><dt><kbd>{keys}</kbd></dt><dd>{what}</dd></>)}</dl>
      <div class="buttons"><button type="button" autofocus onClick={close}>Close</button></div>
    </Dialog>
  );
}

function ConnectionState() {
  if (connection.value === 'lost') return <p class="problem" role="alert">umad does not answer. Trying again…</p>;
  if (connection.value === 'refused') return <p class="problem" role="alert">umad refuses this page: {connectionProblem.value}</p>;
  return null;
}

function Page() {
  const isTalking = view.value !== 'see' && view.value !== 'manage';
  const id = openId.value;
  const session = sessionOf(id);
  const title = session ? `${titleOf(session)} – uma-serve` : 'uma-serve';
  useEffect(() => {
    document.title = visibleText(title);
  }, [title]);
  useEffect(() => {
    listIsOpen.value = false;
    if (isTalking) remember('place', place.value.join('/'));
  }, [place.value]);
  const link = (to: string, label: string) =>
    <a href={`#/${to}`} aria-current={view.value === to || (to === 'talk' && isTalking) ? 'page' : undefined}>{label}</a>;
  return (
    <>
      <a class="skip" href={isTalking ? '#message' : '#main'} onClick={(event) => {
        event.preventDefault();
        document.getElementById(isTalking ? 'message' : 'main')?.focus();
      }}>Skip to the content</a>
      <header class="top">
        <span class="brand"><Mark /><span class="wordmark">uma</span></span>
        <nav class="segments" aria-label="Views">{link('talk', 'Talk')}{link('see', 'See')}{link('manage', 'Manage')}</nav>
        <span class={`about state ${connection.value === 'ok' ? (isLive.value && snapshot.value?.status) || 'ok' : connection.value === 'starting' ? 'starting' : 'lost'}`}>
          {isLive.value && snapshot.value?.status === 'degraded' && 'degraded · '}
          {connection.value === 'ok' ? `umad ${version.value}` : connection.value}
        </span>
        {pulls.value.length > 0 && <a class="about" href="#/manage/models">{pulls.value.map(({ source, completed, total }) => `${source.split('/').at(-1)}${total ? ` ${percent(completed / total)}` : ''}`).join(', ')}</a>}
        {apiKey.value !== '' && <button type="button" class="quiet" onClick={() => {
          useKey('', false);
          connection.value = 'starting';
          void refresh();
        }}>Forget the key</button>}
        <button type="button" class="quiet icon-only keys-button" title="Keys (?)" onClick={() => (shortcutsAreOpen.value = true)}><span aria-hidden="true">?</span><span class="hidden">Keys</span></button>
        <ThemeButton />
      </header>
      <ConnectionState />
      <Problem text={warning.value} onClose={() => (warning.value = '')} />
      {/* With another key a view reads anew. */}
      {isTalking ? <Talk /> : <LaterView key={apiKey.value} name={view.value} />}
      <div class="hidden" role="status" aria-live="polite">{announcement}</div>
      {connection.value === 'needs key' && <KeyDialog />}
      {shortcutsAreOpen.value && <Shortcuts />}
    </>
  );
}

function Watcher() {
  useSignalEffect(() => {
    if (connection.value === 'starting' || connection.value === 'needs key') return;
    if (isWatching) return;
    isWatching = true;
    void watch(() => (view.value === 'see' || view.value === 'manage') && document.visibilityState === 'visible', new AbortController().signal);
  });
  return null;
}
let isWatching = false;

addEventListener('keydown', (event) => {
  const isTyping = (event.target as Element).closest?.('input, textarea, select, [contenteditable]');
  if ((event.key === '/' && !isTyping) || (event.key === 'k' && (event.ctrlKey || event.metaKey))) {
    const search = document.getElementById('search');
    if (!search) return;
    event.preventDefault();
    listIsOpen.value = true;
    search.focus();
    // On a telephone the list is shown first.
    if (document.activeElement !== search) requestAnimationFrame(() => search.focus());
  }
  if (event.key === '?' && !isTyping && connection.value !== 'needs key') shortcutsAreOpen.value = true;
  if (event.code === 'KeyN' && event.altKey) {  // On a Mac its character is another one.
    event.preventDefault();
    goTo('talk');
  }
});
// A file that is dropped beside its place must not replace the page.
for (const name of ['dragover', 'drop']) addEventListener(name, (event) => event.preventDefault());

showTheme();
showTextsOnly();
followPlace();
followTabs();
if (location.hash === '') {
  const before = recall('place', '');
  if (before.startsWith('talk/')) goTo(...before.split('/'));
}
keepFresh();
render(<><Page /><Watcher /></>, document.getElementById('page')!);
