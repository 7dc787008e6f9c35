// The panel at the right: what a session is, what can be done with it, and the settings of its replies.
import { useSignal } from '@preact/signals';
import { clipped } from './api.ts';
import { conversationOf } from './conversation.ts';
import { ago, bytes, count } from './format.ts';
import { keepSettings, settingsOf } from './settings.ts';
import { SettingsForm } from './settings_form.tsx';
import { allSessions, api, changeMetadata, deleteSession, goTo, modelOf, noteFailure, refreshSessions, renameSession } from './state.ts';
import { firstVersionOf, isVersion, tagsOf, titleOf, versionsOf } from './tree.ts';
import { asMarkdown } from './turns.ts';
import type { Session } from './types.ts';
import { Confirm, KeptLine, Problem, saveFile } from './ui.tsx';

const kTitleBytesMax = 200;
const kTiers = { hot: 'in a context (hot)', warm: 'in memory (warm)', cold: 'on disk (cold)', shared: 'where all machines find it (shared)', none: 'not stored' };

export function SessionDetails({ session }: { session: Session }) {
  const id = session.session_id;
  const problem = useSignal('');
  const isDeleting = useSignal(false);
  const title = titleOf(session);
  const versions = versionsOf(session, allSessions.value);
  const parent = allSessions.value.find((each) => each.session_id === session.parent_id);
  const attempt = (work: () => Promise<unknown>) => {
    problem.value = '';
    return work().catch((error) => (problem.value = noteFailure(error)));
  };
  const fork = () => attempt(async () => {
    const made = await api.forkSession(id, undefined, { title: clipped(`${title} (fork)`, kTitleBytesMax), version_of: null, made_from: null });
    keepSettings(made.session_id, settingsOf(id));
    await refreshSessions();
    goTo('talk', made.session_id);
  });
  const saveMarkdown = () => attempt(async () => {
    const conversation = conversationOf(id);
    await conversation.loadAll();
    saveFile(asMarkdown(title, conversation.turns()), `${title}.md`);
  });
  const stored = session.hot_bytes + session.warm_bytes + session.cold_bytes;
  return (
    <>
      <h2>Session</h2>
      <KeptLine label="Name" maxLength={120} value={title} onKeep={(name) => attempt(() => renameSession(id, name))} />
      <KeptLine label="Tags, separated by commas" maxLength={400} value={tagsOf(session).join(', ')} onKeep={(text) => {
        const tags = text.split(',').map((tag) => tag.trim()).filter((tag) => tag !== '').join(',');
        return attempt(() => changeMetadata(id, { tags: tags || null }));
      }} />
      <Problem text={problem.value} onClose={() => (problem.value = '')} />
      <div class="buttons">
        <button type="button" onClick={fork}>Fork</button>
        <button type="button" onClick={() => attempt(async () => saveFile(await api.exportSession(id), `${title}.umasession`))}>Export</button>
        <button type="button" onClick={saveMarkdown}>Save as Markdown</button>
        <button type="button" class="danger" onClick={() => (isDeleting.value = true)}>Delete…</button>
      </div>
      <dl>
        <dt>Model</dt><dd>{session.model}{modelOf(session.model) ? '' : ' (not known here)'}</dd>
        <dt>Tokens</dt><dd>{count(session.tokens)} of {count(modelOf(session.model)?.context_length ?? 0)}{session.pending_tokens > 0 && `, ${count(session.pending_tokens)} without a reply`}</dd>
        <dt>Turns</dt><dd>{count(session.turns)}{session.dropped_turns > 0 && `, ${count(session.dropped_turns)} of them dropped`}</dd>
        <dt>KV cache</dt><dd>{kTiers[session.tier]}{stored > 0 && `, ${bytes(stored)}`}</dd>
        {session.parent_id !== '' && !isVersion(session) && (
          <><dt>Fork of</dt><dd>{parent ? <a href={`#/talk/${session.parent_id}`}>{titleOf(parent)}</a> : 'a session that has ended'}</dd></>
        )}
        {versions.length > 1 && (
          <><dt>Versions</dt><dd>{versions.map((each, i) => (
            <p class="version"><a href={`#/talk/${each.session_id}`} aria-current={each.session_id === id ? 'page' : undefined}>{i + 1}: {each.model}, {ago(each.last_used_s)}</a></p>
          ))}</dd></>
        )}
        <dt>Id</dt><dd><code>{id}</code></dd>
        <dt>Begun</dt><dd>{ago(session.created_s)}</dd>
      </dl>
      <SettingsForm key={id} session={id} model={session.model} />
      {isDeleting.value && (
        <Confirm question={`The session "${title}" is deleted with ${versions.length > 1 ? `its ${versions.length} versions` : 'its turns'}. Forks of it stay.`} action="Delete" onAnswer={(isYes) => {
          isDeleting.value = false;
          if (isYes) attempt(async () => {
            const first = firstVersionOf(session);
            const unlisted = (await api.searchSessions('', first)).data.filter((each) => firstVersionOf(each) === first);
            for (const each of new Set([...versions, ...unlisted].map(({ session_id }) => session_id))) await deleteSession(each);
            goTo('talk');
          });
        }} />
      )}
    </>
  );
}
