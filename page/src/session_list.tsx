// The list of sessions at the left: search, the tree of forks, import.
import { useSignal } from '@preact/signals';
import { useRef } from 'preact/hooks';
import { clipped } from './api.ts';
import { isReplying } from './conversation.ts';
import { ago } from './format.ts';
import { api, goTo, metadataOf, noteFailure, openId, refreshSessions, sessions } from './state.ts';
import { searchRows, tagsOf, titleOf, treeRows } from './tree.ts';
import { Problem } from './ui.tsx';

const kRowsAtOnce = 200;
const kDepthShown = 6;

export function SessionList({ onChoose }: { onChoose: () => void }) {
  const query = useSignal('');
  const shown = useSignal(kRowsAtOnce);
  const problem = useSignal('');
  const list = useRef<HTMLUListElement>(null);
  const file = useRef<HTMLInputElement>(null);
  const all = treeRows(sessions.value, metadataOf);
  const rows = searchRows(all, metadataOf, query.value);

  const move = (event: KeyboardEvent) => {
    const step = event.key === 'ArrowDown' ? 1 : event.key === 'ArrowUp' ? -1 : 0;
    if (step === 0) return;
    const links = [...(list.current?.querySelectorAll('a') ?? [])];
    const at = links.indexOf(document.activeElement as HTMLAnchorElement);
    links[Math.max(0, Math.min(links.length - 1, at + step))]?.focus();
    event.preventDefault();
  };
  const take = async (input: HTMLInputElement) => {
    const chosen = input.files?.[0];
    input.value = '';
    if (!chosen) return;
    try {
      const title = clipped(chosen.name.replace(/\.[^.]*$/, ''), 80);
      const made = await api.importSession(chosen, `${title} ${new Date().toISOString()}`);
      const about = await api.getMetadata(made.session_id);
      // The parent of the file's session is another one, or none, on this machine.
      await api.setMetadata(made.session_id, { title, ...about, forked_from: undefined, forked_at_turn: undefined });
      await refreshSessions();
      problem.value = '';
      goTo('talk', made.session_id);
    } catch (error) {
      problem.value = noteFailure(error);
    }
  };

  return (
    <nav class="sessions" aria-label="Sessions" onKeyDown={move}>
      <div class="buttons">
        <a class="button" href="#/talk" onClick={onChoose}>New session</a>
        <button type="button" onClick={() => file.current?.click()}>Import…</button>
        <input ref={file} type="file" hidden aria-label="File of a session" onChange={(event) => take(event.currentTarget)} />
      </div>
      <input
        id="search" type="search" placeholder="Search" aria-label="Search sessions by title, #tag, model or id" value={query.value}
        onInput={(event) => {
          query.value = event.currentTarget.value;
          shown.value = kRowsAtOnce;
        }}
      />
      <Problem text={problem.value} onClose={() => (problem.value = '')} />
      <ul ref={list}>
        {rows.slice(0, shown.value).map(({ session, depth }) => {
          const id = session.session_id;
          const about = metadataOf(id);
          return (
            <li key={id} class={`depth-${Math.min(depth, kDepthShown)}`}>
              <a href={`#/talk/${id}`} aria-current={id === openId.value ? 'page' : undefined} onClick={onChoose}>
                <span class="title">{depth > 0 && <span aria-label="Fork: ">↳ </span>}{titleOf(session, about)}</span>
                <span class="about">
                  {session.busy || isReplying(id) ? 'writing…' : ago(session.last_used_s)}
                  {tagsOf(about).map((tag) => <span class="tag">{tag}</span>)}
                </span>
              </a>
            </li>
          );
        })}
      </ul>
      {rows.length === 0 && <p class="note">{all.length === 0 ? 'No session yet.' : 'No session has these words.'}</p>}
      {rows.length > shown.value && (
        <button type="button" onClick={() => (shown.value += kRowsAtOnce)}>Show more of {rows.length}</button>
      )}
    </nav>
  );
}
