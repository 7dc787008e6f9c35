// Talking: the sessions at the left, the conversation, the details at the right.
import { signal, useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { isUnknown } from './api.ts';
import { Composer } from './composer.tsx';
import { type Conversation, conversationOf, startSession } from './conversation.ts';
import { SessionDetails } from './details.tsx';
import { Draw } from './draw.tsx';
import { Icon, Mark } from './icons.tsx';
import { Messages } from './messages.tsx';
import { SessionList } from './session_list.tsx';
import { SettingsForm } from './settings_form.tsx';
import { chatModels, connection, modelOf, noteFailure, openId, pictureModels, sessionOf, sessions, visit } from './state.ts';
import { recall, remember } from './store.ts';
import { titleOf } from './tree.ts';
import { messageOfUser } from './turns.ts';
import type { InputItem } from './types.ts';
import { Problem } from './ui.tsx';
import { visibleText } from './visible_text.ts';

export const listIsOpen = signal(false);  // On narrow screens.
const isWide = () => matchMedia('(min-width: 75rem)').matches;
// On narrow screens the details cover the conversation, so they begin closed.
export const detailsAreOpen = signal(isWide() && recall<boolean>('details', false));

function toggleDetails() {
  detailsAreOpen.value = !detailsAreOpen.value;
  if (isWide()) remember('details', detailsAreOpen.value);
}

// What the model that comes with umad has learnt to answer.
const kTinyExamples = ['What is a session?', 'What does umad do?', 'How do I fork a session?'];
const kExamples = ['Explain what a KV cache is to a child', 'Write a haiku about a lighthouse', 'What is a good name for a cat that sleeps all day?'];

function NewSession() {
  const problem = useSignal('');
  const model = useSignal(recall('model', ''));
  const isDropping = useSignal(recall<boolean>('drops', false));
  const system = useSignal(recall('system', ''));
  const optionsAreOpen = useSignal(false);
  const sent = useSignal('');  // The first message, until its session is there.
  const choices = [...chatModels.value, ...pictureModels.value];
  const chosen = modelOf(model.value) ?? choices[0];
  const draws = chosen?.capabilities.includes('image') ?? false;
  const start = async (input: InputItem[], text: string) => {
    problem.value = '';
    sent.value = text;
    try {
      await startSession({ model: chosen?.id, system: system.value.trim() || undefined, on_full: isDropping.value ? 'shift' : 'error' }, input, text);
      return true;
    } catch (error) {
      problem.value = noteFailure(error);
      sent.value = '';
      return false;
    }
  };
  const examples = chosen?.id === 'uma-tiny' ? kTinyExamples : kExamples;
  const modelChoice = (
    <label class="pill">
      <span class="hidden">Model</span>
      <select value={chosen?.id ?? ''} onChange={(event) => {
        model.value = event.currentTarget.value;
        remember('model', model.value);
      }}>
        {choices.map((each) => (
          <option value={each.id}>{each.id}{each.capabilities.includes('image') ? ' (draws)' : ''}{each.state === 'ready' ? '' : `, ${each.state}`}</option>
        ))}
      </select>
    </label>
  );
  return (
    <div class={`fresh ${draws ? 'draws' : ''}`}>
      {sent.value !== '' && (
        <div class="column">
          <article class="user" aria-label="You"><div class="bubble"><p class="said" dir="auto">{visibleText(sent.value)}</p></div></article>
        </div>
      )}
      <div class="welcome" hidden={sent.value !== ''}>
        <Mark />
        <h1>{draws ? 'Draw a picture' : 'Begin a conversation'}</h1>
        <p>{draws
          ? 'Say what the picture shows. It appears while it is drawn.'
          : 'It stays on this machine and is remembered: to go on with it later, the model reads only what is new.'}</p>
      </div>
      {draws && chosen
        ? <Draw model={chosen.id}><div class="choices">{modelChoice}</div></Draw>
        : (
          <>
            <Composer conversation={null} model={chosen?.id ?? ''} onSend={start}>
              <div class="choices" hidden={sent.value !== ''}>
                {modelChoice}
                <button type="button" class="pill" aria-expanded={optionsAreOpen.value} aria-controls="options" onClick={() => (optionsAreOpen.value = !optionsAreOpen.value)}>
                  <Icon name="sliders" />Options{system.value.trim() !== '' && <span class="note">with a system prompt</span>}
                </button>
              </div>
              <div id="options" class="options" hidden={!optionsAreOpen.value}>
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
                <p class="note">Temperature, tools and the form of replies: under Details.</p>
              </div>
              <Problem text={problem.value} onClose={() => (problem.value = '')} />
            </Composer>
            {choices.length === 0 && connection.value === 'ok'
              ? <p class="note">This umad has no model that talks. <a href="#/manage/models">Models</a></p>
              : (
                <ul class="examples" aria-label="Examples" hidden={sent.value !== ''}>
                  {examples.map((text) => (
                    <li><button type="button" disabled={!chosen} onClick={() => start([messageOfUser(text, [])], text)}>{text}</button></li>
                  ))}
                </ul>
              )}
          </>
        )}
    </div>
  );
}

function OpenSession({ conversation }: { conversation: Conversation }) {
  useEffect(() => {
    const session = sessionOf(conversation.id);
    if (!session && !conversation.isLoaded.value) void conversation.load();
    if (!session) visit(conversation.id).catch((error) => isUnknown(error) || noteFailure(error));
    const esc = (event: KeyboardEvent) => {
      if (event.key === 'Escape' && !document.querySelector('dialog[open]') && !(event.target as Element).closest('.edit')) void conversation.stop();
    };
    addEventListener('keydown', esc);
    return () => removeEventListener('keydown', esc);
  }, [conversation]);
  const list = sessions.value;
  useEffect(() => conversation.follow(), [list, conversation]);
  const session = sessionOf(conversation.id);
  return (
    <>
      <Messages conversation={conversation} />
      {!conversation.isGone.value && (
        <Composer key={conversation.id} conversation={conversation} model={session?.model ?? ''} onSend={async (input) => {
          void conversation.send(input);
          return true;  // If it fails, the conversation gives it back.
        }} />
      )}
    </>
  );
}

export function Talk() {
  const id = openId.value;
  const session = sessionOf(id);
  const model = chatModels.value[0]?.id ?? '';
  const close = () => (listIsOpen.value = false);
  return (
    <div class={`talk${listIsOpen.value ? ' list-open' : ''}${detailsAreOpen.value ? ' details-open' : ''}`}>
      <aside class="left"><SessionList onChoose={close} /></aside>
      <main id="main">
        <header class={`bar ${id === '' ? 'empty' : ''}`}>
          <button type="button" class="only-narrow quiet" aria-expanded={listIsOpen.value} onClick={() => (listIsOpen.value = !listIsOpen.value)}><Icon name="list" /><span>Sessions</span></button>
          {id === '' ? <span /> : <h1 class="hidden">Conversation</h1>}
          {id !== '' && <h2 dir="auto">{session ? titleOf(session) : 'Session'}</h2>}
          <span class="about">{session?.model}</span>
          <button type="button" class="quiet" aria-expanded={detailsAreOpen.value} aria-controls="details" onClick={toggleDetails}><Icon name="sliders" /><span>Details</span></button>
        </header>
        {id === '' ? <NewSession /> : <OpenSession key={id} conversation={conversationOf(id)} />}
      </main>
      {detailsAreOpen.value && (
        <aside id="details" class="right" aria-label="Details">
          <button type="button" class="only-narrow quiet" onClick={toggleDetails}><Icon name="close" />Close</button>
          {session ? <SessionDetails key={id} session={session} /> : <SettingsForm key={id || 'new'} session={id} model={model} />}
        </aside>
      )}
    </div>
  );
}
