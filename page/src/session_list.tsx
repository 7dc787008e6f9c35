// The list of sessions at the left: search, the tree of forks, import.
import { useSignal } from '@preact/signals';
import { useRef } from 'preact/hooks';
import { groupHeadings } from './age_groups.ts';
import { ApiError, clipped } from './api.ts';
import { isReplying } from './conversation.ts';
import { ago } from './format.ts';
import { Icon, Mark } from './icons.tsx';
import { api, goTo, hasOlder, listOlder, noteFailure, openId, refreshSessions, searchOlder, sessions } from './state.ts';
import { searchRows, tagsOf, titleOf, treeRows } from './tree.ts';
import { Problem } from './ui.tsx';

const kRowsAtOnce = 200;
const kDepthShown = 6;
const kTiers = { hot: 'Hot: its state is in a context', warm: 'Warm: its state is in memory', cold: 'Cold: its state is on disk', shared: 'Shared: its state is where all machines find it', none: 'Its state is computed again' };
const kSearchAfterMs = 300;

const kCopiesMax = 100;

// The name in the file may be taken here; the session is then a numbered copy.
async function importSession(chosen: File, title: string) {
  for (let copy = 1; ; ++copy) {
    try {
      return await api.importSession(chosen, copy === 1 ? undefined : `${title} (${copy})`);
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 409 || copy === kCopiesMax) throw error;
    }
  }
}

export function SessionList({ onChoose }: { onChoose: () => void }) {
  const query = useSignal('');
  const shown = useSignal(kRowsAtOnce);
  const problem = useSignal('');
  const list = useRef<HTMLUListElement>(null);
  const file = useRef<HTMLInputElement>(null);
  const timer = useRef(0);
  const all = treeRows(sessions.value, openId.value);
  const rows = searchRows(all, query.value);

  const headings = groupHeadings(rows, Date.now());

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
      const made = await importSession(chosen, title);
      if (made.name === '' && !made.metadata.title) await api.setMetadata(made.session_id, { title });
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
        <a class="button begin" href="#/talk" onClick={onChoose}><Icon name="plus" />New session</a>
        <button type="button" class="quiet icon-only" title="Import a session from a file" onClick={() => file.current?.click()}><Icon name="import" /><span class="hidden">Import…</span></button>
        <input ref={file} type="file" hidden aria-label="File of a session" onChange={(event) => take(event.currentTarget)} />
      </div>
      <div class="search">
        <Icon name="search" />
        <input
          id="search" type="search" placeholder="Search" aria-label="Search sessions by title, #tag, model or id" value={query.value}
          onInput={(event) => {
            query.value = event.currentTarget.value;
            shown.value = kRowsAtOnce;
            clearTimeout(timer.current);
            timer.current = setTimeout(() => void searchOlder(query.value).catch(noteFailure), kSearchAfterMs);
          }}
        />
        <kbd aria-hidden="true">/</kbd>
      </div>
      <Problem text={problem.value} onClose={() => (problem.value = '')} />
      <ul ref={list}>
        {rows.slice(0, shown.value).map(({ session, depth, versions }, i) => {
          const id = session.session_id;
          return (
            <li key={id} class={`depth-${Math.min(depth, kDepthShown)}`}>
              {headings[i] && <span class="group">{headings[i]}</span>}
              <a href={`#/talk/${id}`} aria-current={id === openId.value ? 'page' : undefined} onClick={onChoose}>
                <span class="title">{depth > 0 && <><span class="branch"><Icon name="fork" /></span><span class="hidden">Fork: </span></>}<bdi>{titleOf(session)}</bdi></span>
                <span class="about">
                  {session.busy || isReplying(id) ? <span class="writing">writing…</span> : ago(session.last_used_s).replace(' ago', '')}
                  <span class={`dot ${session.tier}`} title={kTiers[session.tier]} />
                  {versions.length > 1 && <span>{versions.length} versions</span>}
                  {tagsOf(session).map((tag) => <span class="tag">{tag}</span>)}
                </span>
              </a>
            </li>
          );
        })}
      </ul>
      {rows.length === 0 && (all.length > 0 ? <p class="note">No session has these words.</p> : (
        <div class="nothing">
          <Mark />
          <p>No session yet.</p>
          <p class="note">What you talk about is kept on this machine. Come back in a minute or in a month: a session goes on where it stopped.</p>
        </div>
      ))}
      {hasOlder.value && query.value !== '' && <p class="note">Older sessions are found by words of their title or tags, or by their whole id.</p>}
      {(rows.length > shown.value || (hasOlder.value && query.value === '')) && (
        <button type="button" onClick={() => {
          shown.value += kRowsAtOnce;
          if (hasOlder.value) void listOlder().catch(noteFailure);
        }}>Older sessions</button>
      )}
    </nav>
  );
}
