// Talking: the sessions at the left, the conversation, the details at the right.
import { signal, useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { Composer } from './composer.tsx';
import { type Conversation, conversationOf, startSession } from './conversation.ts';
import { SessionDetails } from './details.tsx';
import { Draw } from './draw.tsx';
import { Messages } from './messages.tsx';
import { SessionList } from './session_list.tsx';
import { SettingsForm } from './settings_form.tsx';
import { chatModels, connection, modelOf, noteFailure, openId, pictureModels, sessions } from './state.ts';
import { recall, remember } from './store.ts';
import { titleOf } from './tree.ts';
import type { InputItem } from './types.ts';
import { Problem } from './ui.tsx';

export const listIsOpen = signal(false);  // On narrow screens.
const isWide = () => matchMedia('(min-width: 75rem)').matches;
// On narrow screens the details cover the conversation, so they begin closed.
export const detailsAreOpen = signal(isWide() && recall<boolean>('details', false));

function toggleDetails() {
  detailsAreOpen.value = !detailsAreOpen.value;
  if (isWide()) remember('details', detailsAreOpen.value);
}

function NewSession() {
  const problem = useSignal('');
  const model = useSignal('');
  const isDropping = useSignal(recall<boolean>('drops', false));
  const system = useSignal(recall('system', ''));
  const choices = [...chatModels.value, ...pictureModels.value];
  const chosen = modelOf(model.value) ?? choices[0];
  const draws = chosen?.capabilities.includes('image') ?? false;
  const start = async (input: InputItem[], text: string) => {
    problem.value = '';
    try {
      await startSession({ model: chosen?.id, system: system.value.trim() || undefined, on_full: isDropping.value ? 'shift' : 'error' }, input, text);
      return true;
    } catch (error) {
      problem.value = noteFailure(error);
      return false;
    }
  };
  return (
    <>
      <div class="messages">
        <div class="column start">
          <h1>New session</h1>
          <label>
            Model
            <select value={chosen?.id ?? ''} onChange={(event) => (model.value = event.currentTarget.value)}>
              {choices.map((each) => (
                <option value={each.id}>{each.id}{each.capabilities.includes('image') ? ' (draws)' : ''}{each.state === 'ready' ? '' : `, ${each.state}`}</option>
              ))}
            </select>
          </label>
          {choices.length === 0 && connection.value === 'ok' && <p class="note">This umad has no model that talks. <a href="#/manage/models">Models</a></p>}
          {!draws && (
            <>
              <label>
                System prompt
                <textarea rows={3} value={system.value} placeholder="The model's own, if any" onInput={(event) => {
                  system.value = event.currentTarget.value;
                  remember('system', system.value || undefined);
                }} />
              </label>
              <label class="check">
                <input type="checkbox" checked={isDropping.value} onChange={(event) => {
                  isDropping.value = event.currentTarget.checked;
                  remember('drops', isDropping.value);
                }} />
                When the context is full, drop the oldest turns and go on
              </label>
            </>
          )}
          <Problem text={problem.value} onClose={() => (problem.value = '')} />
          {draws && chosen && <Draw model={chosen.id} />}
        </div>
      </div>
      {!draws && <Composer conversation={null} model={chosen?.id ?? ''} onSend={start} />}
    </>
  );
}

function OpenSession({ conversation }: { conversation: Conversation }) {
  useEffect(() => {
    const session = sessions.value.find((each) => each.session_id === conversation.id);
    if (!session && !conversation.isLoaded.value) void conversation.load();
    const esc = (event: KeyboardEvent) => {
      if (event.key === 'Escape' && !document.querySelector('dialog[open]') && !(event.target as Element).closest('.edit')) void conversation.stop();
    };
    addEventListener('keydown', esc);
    return () => removeEventListener('keydown', esc);
  }, [conversation]);
  const list = sessions.value;
  useEffect(() => conversation.follow(), [list, conversation]);
  const session = list.find((each) => each.session_id === conversation.id);
  return (
    <>
      <Messages conversation={conversation} />
      <Composer key={conversation.id} conversation={conversation} model={session?.model ?? ''} onSend={async (input) => {
        void conversation.send(input);
        return true;  // If it fails, the conversation gives it back.
      }} />
    </>
  );
}

export function Talk() {
  const id = openId.value;
  const session = sessions.value.find((each) => each.session_id === id);
  const model = chatModels.value[0]?.id ?? '';
  const close = () => (listIsOpen.value = false);
  return (
    <div class={`talk${listIsOpen.value ? ' list-open' : ''}${detailsAreOpen.value ? ' details-open' : ''}`}>
      <aside class="left"><SessionList onChoose={close} /></aside>
      <main id="main">
        <header class="bar">
          <button type="button" class="only-narrow" aria-expanded={listIsOpen.value} onClick={() => (listIsOpen.value = !listIsOpen.value)}>Sessions</button>
          <h2>{id === '' ? '' : session ? titleOf(session) : 'Session'}</h2>
          <span class="about">{session?.model}</span>
          <button type="button" aria-expanded={detailsAreOpen.value} aria-controls="details" onClick={toggleDetails}>Details</button>
        </header>
        {id === '' ? <NewSession /> : <OpenSession key={id} conversation={conversationOf(id)} />}
      </main>
      {detailsAreOpen.value && (
        <aside id="details" class="right" aria-label="Details">
          <button type="button" class="only-narrow" onClick={toggleDetails}>Close</button>
          {session ? <SessionDetails key={id} session={session} /> : <SettingsForm key="new" session="" model={model} />}
        </aside>
      )}
    </div>
  );
}
