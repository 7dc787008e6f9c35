// The field in which a message is written, with its pictures.
import { useSignal, useSignalEffect } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useRef } from 'preact/hooks';
import type { Conversation } from './conversation.ts';
import { StackedBar } from './bars.tsx';
import { count, counted } from './format.ts';
import { Icon } from './icons.tsx';
import { kPicturesCharsMax, pictureFiles, readPicture } from './pictures.ts';
import { api, modelOf, sessionOf } from './state.ts';
import { recall, remember } from './store.ts';
import { messageOfUser } from './turns.ts';
import type { InputItem } from './types.ts';
import { Problem } from './ui.tsx';

const kCountAfterMs = 500;

interface Props {
  conversation: Conversation | null;  // Null: the first message of a new session.
  model: string;
  onSend: (input: InputItem[], text: string) => Promise<boolean>;  // False: the message stays in the field.
  children?: ComponentChildren;  // Controls above the field.
}

export function Composer({ conversation, model, onSend, children }: Props) {
  const draftName = `draft.${conversation?.id ?? ''}`;
  const text = useSignal(recall(draftName, ''));
  const pictures = useSignal<string[]>([]);
  const problem = useSignal('');
  const isSending = useSignal(false);
  const tokens = useSignal<number | null>(null);
  const field = useRef<HTMLTextAreaElement>(null);
  const file = useRef<HTMLInputElement>(null);
  const readsImages = modelOf(model)?.capabilities.includes('vision') ?? false;
  const isBusy = conversation?.isBusy.value ?? false;

  // What could not be sent stands before what was written meanwhile.
  const putBack = (texts: readonly string[], shown: readonly string[]) => {
    text.value = [...texts, text.peek()].filter((each) => each !== '').join('\n\n');
    pictures.value = [...shown, ...pictures.peek()];
  };
  // A message that could not be sent stands here again.
  useSignalEffect(() => {
    const unsent = conversation?.unsent.value;
    if (!unsent) return;
    conversation.unsent.value = null;
    const parts = unsent.flatMap((item) => ('role' in item && item.role === 'user' ? item.content : []));
    putBack(parts.flatMap((part) => (part.type === 'input_text' ? [part.text] : [])),
      parts.flatMap((part) => (part.type === 'input_image' ? [part.image_url] : [])));
  });
  // At once: later it would take the focus from what was chosen meanwhile.
  useLayoutEffect(() => {
    if (matchMedia('(pointer: fine)').matches) field.current?.focus();
  }, []);
  useEffect(() => {
    remember(draftName, text.value === '' ? undefined : text.value);
    const element = field.current!;
    element.rows = Math.min(12, Math.max(1, text.value.split('\n').length));
    tokens.value = null;
    if (text.value === '' || text.value.length > 200_000 || modelOf(model)?.state !== 'ready') return;
    const abort = new AbortController();
    const timer = setTimeout(() => {
      api.countTokens(model, text.value, abort.signal).then((n) => (tokens.value = n)).catch(() => {});
    }, kCountAfterMs);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text.value, model]);

  const add = async (files: readonly File[]) => {
    if (files.length === 0) return;
    if (!readsImages) {
      problem.value = `${model} reads no pictures.`;
      return;
    }
    try {
      const added = await Promise.all(files.map(readPicture));
      const all = [...pictures.value, ...added];
      if (all.reduce((sum, each) => sum + each.length, 0) > kPicturesCharsMax) throw new Error('These pictures are too large for one message: 11 MiB at most.');
      pictures.value = all;
      problem.value = '';
    } catch (error) {
      problem.value = (error as Error).message;
    }
  };
  const taken = () => {
    const message = { said: text.value, shown: pictures.value };
    text.value = '';
    pictures.value = [];
    return message;
  };
  const goOn = () => {
    const { said, shown } = taken();
    void conversation?.goOn(said.trim() === '' && shown.length === 0 ? [] : [messageOfUser(said, shown)]);
  };
  const send = async () => {
    if (isBusy || isSending.value || (text.value.trim() === '' && pictures.value.length === 0)) return;
    const { said, shown } = taken();
    isSending.value = conversation === null;
    if (!(await onSend([messageOfUser(said, shown)], said))) putBack([said], shown);
    isSending.value = false;
  };
  const keys = (event: KeyboardEvent) => {
    if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      void send();
    }
  };

  const session = sessionOf(conversation?.id ?? '');
  const context = modelOf(session?.model ?? model)?.context_length;
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        void send();
      }}
      onDragOver={(event) => event.preventDefault()}
      onDrop={(event) => {
        event.preventDefault();
        void add(pictureFiles(event.dataTransfer));
      }}
    >
      <Problem text={problem.value || (conversation?.problem.value ?? '')} onClose={() => {
        problem.value = '';
        if (conversation) conversation.problem.value = '';
      }} />
      {conversation?.isFull.value && (
        <p class="problem" role="alert">
          This conversation is as long as the model can read.
          <button type="button" disabled={isBusy} onClick={goOn}>Drop the oldest turns and go on</button>
          <a class="button" href="#/talk">Begin another session</a>
        </p>
      )}
      {children}
      <div class="field">
        {pictures.value.length > 0 && (
          <ul class="pictures" aria-label="Pictures of the message">
            {pictures.value.map((address, i) => (
              <li>
                <img src={address} alt={`Picture ${i + 1}`} />
                <button type="button" class="icon-only" aria-label={`Remove picture ${i + 1}`} onClick={() => (pictures.value = pictures.value.filter((_, at) => at !== i))}><Icon name="close" /></button>
              </li>
            ))}
          </ul>
        )}
        <textarea
          id="message" ref={field} dir="auto" rows={1} value={text.value} aria-label="Message" placeholder={conversation ? 'Go on…' : 'Ask anything'}
          aria-describedby="message-help"
          onInput={(event) => (text.value = event.currentTarget.value)} onKeyDown={keys}
          onPaste={(event) => {
            const files = pictureFiles(event.clipboardData);
            if (files.length === 0) return;
            event.preventDefault();
            void add(files);
          }}
        />
        <div class="line">
          {readsImages && (
            <>
              <button type="button" class="quiet icon-only" title="Add a picture" onClick={() => file.current?.click()}><Icon name="picture" /><span class="hidden">Picture…</span></button>
              <input ref={file} type="file" accept="image/*" multiple hidden aria-label="Pictures" onChange={(event) => {
                void add([...(event.currentTarget.files ?? [])]);
                event.currentTarget.value = '';
              }} />
            </>
          )}
          <p class="note" id="message-help">
            {text.value === ''
              ? <span class="key-help">Enter sends, Shift+Enter begins a line, Esc stops the reply.</span>
              : tokens.value !== null && `This message: ${counted(tokens.value, 'token')}.`}
          </p>
          {session && context ? (
            <span class="note gauge" title={`The session has ${count(session.tokens)} of ${counted(context, 'token')}.`}>
              <StackedBar size="small" whole={context} parts={[{ kind: session.tokens > 0.9 * context ? 'bad' : 'accent', value: session.tokens }]} />
              <span class="hidden">The session has </span>{count(session.tokens)} of {count(context)}<span class="hidden"> tokens.</span>
            </span>
          ) : ''}
          {isBusy
            ? <button key="stop" type="button" class="round danger" title="Stop" disabled={conversation!.isStopping.value} onClick={() => conversation!.stop()}><Icon name="stop" /><span class="hidden">Stop</span></button>
            : <button key="send" class="round main" title="Send" disabled={isSending.value}><Icon name="send" /><span class="hidden">Send</span></button>}
        </div>
      </div>
    </form>
  );
}
