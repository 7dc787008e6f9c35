// The turns of a conversation and the reply that is being written.
import { useSignal } from '@preact/signals';
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import type { Conversation } from './conversation.ts';
import { count } from './format.ts';
import { Markdown } from './markdown.tsx';
import { Icon, type IconName } from './icons.tsx';
import { ReceiptLine } from './receipt_line.tsx';
import type { Reply } from './reply.ts';
import { sessionOf } from './state.ts';
import { branchesAt } from './tree.ts';
import { itemsBefore, toSend, messageOfUser, picturesOf, textOf, type Turn } from './turns.ts';
import type { InputItem, Item } from './types.ts';
import { Confirm, CopyAction } from './ui.tsx';
import { visibleCode, visibleText } from './visible_text.ts';

function Pictures({ addresses }: { addresses: readonly (string | null)[] }) {
  if (addresses.length === 0) return null;
  return (
    <div class="pictures">
      {addresses.map((address, i) =>
        address ? <img src={address} alt={`Picture ${i + 1} of the message`} /> : <p class="note">A picture that is not here any more.</p>)}
    </div>
  );
}

function Reasoning({ text, isOpen }: { text: string; isOpen: boolean }) {
  if (text === '') return null;
  return (
    <details class="fold reasoning">
      <summary><Icon name="chevron" /><span class={isOpen ? 'writing' : undefined}>{isOpen ? 'Reasoning…' : 'Reasoning'}</span></summary>
      <div class="folded"><Markdown text={text} isOpen={isOpen} /></div>
    </details>
  );
}

function pretty(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

const kPreviewCharsMax = 60;

// `isShown`: unfolded from the start, because somebody has to act on it.
function ToolCall({ name, args, isOpen, isShown = isOpen }: { name: string; args: string; isOpen?: boolean; isShown?: boolean }) {
  return (
    <section class="call" aria-label={`Tool call ${name}`}>
      <details class="fold" open={isShown}>
        <summary>
          <Icon name="chevron" /><Icon name="tool" />Tool call <code>{visibleCode(name)}</code>
          <code class="preview">{visibleCode(args.slice(0, kPreviewCharsMax))}</code>
        </summary>
        <pre tabIndex={0}>{visibleCode(isOpen ? args : pretty(args))}</pre>
      </details>
    </section>
  );
}

function ToolOutput({ text, pictures }: { text: string; pictures: (string | null)[] }) {
  return (
    <section class="call" aria-label="Result of a tool call">
      <details class="fold">
        <summary><Icon name="chevron" />Result <code class="preview">{visibleText(text.slice(0, kPreviewCharsMax))}</code></summary>
        <Pictures addresses={pictures} />
        <pre tabIndex={0}>{visibleText(text)}</pre>
      </details>
    </section>
  );
}

interface ActionProps {
  icon: IconName;
  name: string;
  hint?: string;
  isPressed?: boolean;
  disabled?: boolean;
  class?: string;
  onClick: () => void;
}

function Action({ icon, name, hint, isPressed, disabled, class: own = '', onClick }: ActionProps) {
  return (
    <button type="button" class={`quiet icon-only ${own}`} title={hint ?? name} aria-pressed={isPressed} disabled={disabled} onClick={onClick}>
      <Icon name={icon} /><span class="hidden">{name}</span>
    </button>
  );
}

// The form for the results of the tool calls that wait for one.
function ToolResults({ calls, conversation }: { calls: (Item & { type: 'function_call' })[]; conversation: Conversation }) {
  const results = useSignal<Record<string, string>>({});
  const send = (event: Event) => {
    event.preventDefault();
    void conversation.send(calls.map((call) => ({
      type: 'function_call_output', call_id: call.call_id, output: results.value[call.call_id] ?? '',
    })));
  };
  return (
    <form class="results" onSubmit={send}>
      {calls.map((call) => (
        <label>
          Result of {call.name}
          <textarea rows={2} onInput={(event) => (results.value = { ...results.value, [call.call_id]: event.currentTarget.value })} />
        </label>
      ))}
      <button class="main">Send {calls.length === 1 ? 'the result' : 'the results'}</button>
    </form>
  );
}

function Branches({ conversation, turn }: { conversation: Conversation; turn: number }) {
  const session = sessionOf(conversation.id);
  if (!session) return null;
  const { all, at } = branchesAt(session, turn, conversation.family.value);
  if (all.length < 2) return null;
  const link = (to: number, text: string, label: string) =>
    all[to] ? <a href={`#/talk/${all[to].session_id}`} aria-label={label}>{text}</a> : <span aria-hidden="true">{text}</span>;
  return (
    <span class="branches" role="group" aria-label="Versions">
      {link(at - 1, '‹', 'Earlier version')} {at + 1} of {all.length} {link(at + 1, '›', 'Later version')}
    </span>
  );
}

function Edit({ text, onDone }: { text: string; onDone: (text: string | null) => void }) {
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus(), []);
  const keys = (event: KeyboardEvent) => {
    if (event.key === 'Escape') onDone(null);
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) onDone(field.current!.value);
  };
  return (
    <form
      class="edit"
      onSubmit={(event) => {
        event.preventDefault();
        onDone(field.current!.value);
      }}
    >
      <textarea ref={field} dir="auto" rows={Math.min(12, text.split('\n').length + 1)} aria-label="Message" defaultValue={text} onKeyDown={keys} />
      <div class="buttons">
        <button type="button" onClick={() => onDone(null)}>Cancel</button>
        <button class="main">Send as another version</button>
      </div>
    </form>
  );
}

const kFoldedCharsMax = 3000;
const kFoldedLinesMax = 40;

// What the user has said. The end of a long text is folded.
function Said({ text }: { text: string }) {
  const isOpen = useSignal(false);
  const start = text.split('\n', kFoldedLinesMax).join('\n').slice(0, kFoldedCharsMax);
  const isFolded = start.length < text.length;
  return (
    <>
      <p class="said" dir="auto">{visibleText(isOpen.value || !isFolded ? text : `${start}…`)}</p>
      {isFolded && <button type="button" class="quiet" aria-expanded={isOpen.value} onClick={() => (isOpen.value = !isOpen.value)}>{isOpen.value ? 'Show less' : `Show all ${count(text.length)} characters`}</button>}
    </>
  );
}

function Input({ items }: { items: readonly Item[] }) {
  return (
    <>
      {items.map((item) => {
        if (item.type === 'function_call_output') {
          return <ToolOutput text={textOf(item.output)} pictures={picturesOf(item.output)} />;
        }
        if (item.type !== 'message') return null;
        return <div class="bubble"><Pictures addresses={picturesOf(item.content)} /><Said text={textOf(item.content)} /></div>;
      })}
    </>
  );
}

function TurnView({ turn, isLast, conversation }: { turn: Turn; isLast: boolean; conversation: Conversation }) {
  const isEditing = useSignal(false);
  const asText = useSignal(false);
  const isAsking = useSignal(false);
  const receipt = conversation.receipts.value.get(turn.turn);
  const message = turn.input.findLast((item) => item.type === 'message');
  const reply = turn.output.map((item) => (item.type === 'message' ? textOf(item.content) : '')).join('');
  const waiting = turn.output.filter((item) => item.type === 'function_call');
  const isBusy = conversation.isBusy.value;

  const asked = useRef<HTMLElement>(null);
  const wasEditing = useRef(false);
  useEffect(() => {
    if (wasEditing.current && !isEditing.value) asked.current?.querySelector<HTMLElement>('.edit-action')?.focus();
    wasEditing.current = isEditing.value;
  }, [isEditing.value]);

  const again = (change: (input: InputItem[]) => InputItem[]) => {
    try {
      void conversation.branch(turn.turn, [...toSend(itemsBefore(turn, conversation.turns())), ...change(toSend(turn.input))]);
    } catch (error) {
      conversation.problem.value = (error as Error).message;
    }
  };
  const edited = (text: string | null) => {
    isEditing.value = false;
    if (text === null || message?.type !== 'message') return;
    again((input) => {
      const last = input.findLastIndex((item) => 'role' in item && item.role === 'user');
      return input.map((item, i) => (i === last ? messageOfUser(text, picturesOf(message.content).filter((each) => each !== null)) : item));
    });
  };

  return (
    <>
      {turn.system.map((text) => (
        <details class="fold system"><summary><Icon name="chevron" />System prompt</summary><div class="folded"><p class="said" dir="auto">{visibleText(text)}</p></div></details>
      ))}
      {turn.input.length > 0 && (
        <article ref={asked} class="user" aria-label="You">
          {isEditing.value && message?.type === 'message' ? <Edit text={textOf(message.content)} onDone={edited} /> : <Input items={turn.input} />}
          <footer>
            <Branches conversation={conversation} turn={turn.turn} />
            {message?.type === 'message' && !isEditing.value && <CopyAction text={textOf(message.content)} />}
            {message && !isEditing.value && <Action icon="edit" name="Edit" hint="Edit; this version stays" class="edit-action" disabled={isBusy} onClick={() => (isEditing.value = true)} />}
            {isLast && turn.output.length === 0 && !isBusy && (
              <>
                <button type="button" class="quiet" onClick={() => conversation.answer()}>Answer</button>
                <button type="button" class="quiet" onClick={() => conversation.takeBack(turn)}>Take back</button>
              </>
            )}
          </footer>
        </article>
      )}
      {turn.output.length > 0 && (
        <article class="reply" aria-label="Reply">
          {turn.output.map((item) => {
            if (item.type === 'reasoning') return <Reasoning text={textOf(item.content)} isOpen={false} />;
            if (item.type === 'function_call') return <ToolCall name={item.name} args={item.arguments} isShown={isLast} />;
            return item.type === 'message' ? <Markdown text={textOf(item.content)} asText={asText.value} /> : null;
          })}
          {isLast && waiting.length > 0 && !isBusy && <ToolResults calls={waiting} conversation={conversation} />}
          {receipt && <ReceiptLine usage={receipt.usage} reason={receipt.reason} />}
          <footer>
            {reply !== '' && <CopyAction text={reply} />}
            <Action icon="again" name="Regenerate" hint="Answer again with the settings at the right; this reply stays" disabled={isBusy || turn.input.length === 0} onClick={() => conversation.regenerate(turn.turn)} />
            {conversation.otherModels.value.length > 0 && turn.input.length > 0 && (
              <select class="others" aria-label="Answer with another model" value="" disabled={isBusy} onChange={(event) => void conversation.answerBy(event.currentTarget.value, turn)}>
                <option value="" disabled>Other model</option>
                {conversation.otherModels.value.map(({ id }) => <option value={id}>{id}</option>)}
              </select>
            )}
            {reply !== '' && <Action icon="text" name="Show as text" isPressed={asText.value} onClick={() => (asText.value = !asText.value)} />}
            {!isLast && <Action icon="rewind" name="Rewind to here" disabled={isBusy} onClick={() => (isAsking.value = true)} />}
          </footer>
        </article>
      )}
      {isAsking.value && (
        <Confirm
          question="All turns behind this one are deleted. To keep them, fork the session first." action="Rewind"
          onAnswer={(isYes) => {
            isAsking.value = false;
            if (isYes) void conversation.rewind(turn.turn);
          }}
        />
      )}
    </>
  );
}

// What was seen of a reply that umad has lost.
function Lost({ reply }: { reply: Reply }) {
  return (
    <article class="reply lost" aria-label="Lost reply">
      <Markdown text={reply.text} />
      <p class="receipt">This was not kept: umad ended while it was written.</p>
      <footer><CopyAction text={reply.text} /></footer>
    </article>
  );
}

// The reply that is being written. It alone is rendered again while it grows.
function Tail({ conversation, onGrow }: { conversation: Conversation; onGrow: () => void }) {
  const reply = conversation.reply.value;
  useLayoutEffect(onGrow, [reply]);
  if (!reply) return null;
  return (
    <>
      <article class="reply" aria-label="Reply" aria-busy="true">
        <Reasoning text={reply.reasoning} isOpen={reply.text === ''} />
        <Markdown text={reply.text} isOpen />
        {reply.calls.map((call) => <ToolCall name={call.name} args={call.arguments} isOpen />)}
        <p class="receipt writing">
          {reply.isStopping ? 'Stopping…' : reply.isElsewhere ? 'A reply is being written for another tab or program…'
            : reply.text === '' && reply.reasoning === '' && reply.calls.length === 0 ? 'Waiting for the first token…' : 'Writing…'}
        </p>
      </article>
    </>
  );
}

const kEndPx = 2;
const kNearPx = 120;  // So near to the end no button leads there.

// The height of what is below the visible part.
const restOf = (element: Element) => element.scrollHeight - element.scrollTop - element.clientHeight;

export function Messages({ conversation }: { conversation: Conversation }) {
  const box = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const top = useRef(0);
  const anchor = useRef<{ first: string | undefined; fromEnd: number } | null>(null);  // While earlier turns are read.
  const canJump = useSignal(false);
  const items = conversation.items.value;
  const isBusy = conversation.isBusy.value;
  const turns = conversation.turns();
  // A reply that is made again takes the place of the one before.
  const written = conversation.writtenTurn.value;
  const shown = turns.map((turn, i) => (turn.turn === written && i === turns.length - 1 ? { ...turn, output: [] } : turn));

  const toEnd = () => {
    isAtEnd.current = true;
    if (box.current === null) return;
    box.current.scrollTop = box.current.scrollHeight;
    top.current = box.current.scrollTop;
  };
  useLayoutEffect(() => {
    isAtEnd.current = true;
    top.current = 0;
    anchor.current = null;
  }, [conversation]);
  // Who scrolls up, however little, is not pulled back.
  const note = () => {
    const element = box.current;
    if (element === null) return;  // The event came after the conversation had gone.
    if (restOf(element) <= kEndPx) isAtEnd.current = true;
    else if (element.scrollTop < top.current) isAtEnd.current = false;
    top.current = element.scrollTop;
    canJump.value = !isAtEnd.current && restOf(element) > kNearPx;
  };
  const follow = () => {
    note();  // The event of a movement may come after the text that follows it.
    if (isAtEnd.current) toEnd();
  };
  useLayoutEffect(() => {
    const before = anchor.current;
    if (before && items[0]?.id !== before.first) {
      anchor.current = null;
      box.current!.scrollTop = box.current!.scrollHeight - before.fromEnd;
    } else {
      follow();
    }
  }, [conversation, items, isBusy]);
  const loadEarlier = () => {
    const element = box.current!;
    anchor.current = { first: items[0]?.id, fromEnd: element.scrollHeight - element.scrollTop };
    void conversation.loadEarlier();
  };

  return (
    <div class="messages" ref={box} onScroll={note} role="log" aria-live="off" aria-label="Conversation" tabIndex={0}>
      <div class="column">
        {conversation.hasEarlier.value && (
          <button type="button" onClick={loadEarlier}>Show earlier turns</button>
        )}
        {conversation.isGone.value && <p class="note">There is no such session: it was deleted, or another key made it. <a href="#/talk">Begin another one</a></p>}
        {!conversation.isLoaded.value && !conversation.isGone.value && conversation.problem.value === '' && <p class="note">Reading the session…</p>}
        {shown.map((turn, i) => (
          <TurnView key={`${turn.turn}.${turn.part}`} turn={turn} isLast={i === shown.length - 1} conversation={conversation} />
        ))}
        {isBusy && <Tail conversation={conversation} onGrow={follow} />}
        {!isBusy && conversation.lost.value && <Lost reply={conversation.lost.value} />}
      </div>
      {canJump.value && <button type="button" class="jump" onClick={toEnd}><Icon name="down" />To the end</button>}
    </div>
  );
}
