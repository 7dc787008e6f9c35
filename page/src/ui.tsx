// Small parts that several views use.
import { useSignal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { Icon } from './icons.tsx';

export function Problem({ text, onClose }: { text: string; onClose?: () => void }) {
  if (text === '') return null;
  return (
    <p class="problem" role="alert">
      {text}
      {onClose && <button type="button" class="quiet" onClick={onClose}>Close</button>}
    </p>
  );
}

// A line of text that is kept when it is left. What comes from the daemon meanwhile does not replace what is being typed.
export function KeptLine({ label, value, maxLength, onKeep }: { label: string; value: string; maxLength: number; onKeep: (text: string) => Promise<unknown> }) {
  const typed = useSignal<string | null>(null);
  return (
    <label>
      {label}
      <input
        type="text" maxLength={maxLength} value={typed.value ?? value} onInput={(event) => (typed.value = event.currentTarget.value)}
        onChange={(event) => {
          const text = event.currentTarget.value;
          void onKeep(text.trim()).finally(() => typed.value === text && (typed.value = null));
        }}
      />
    </label>
  );
}

// A modal dialog, which keeps the focus and gives it back. Without `onClose` it cannot be closed: browsers close it with a second
// Escape, and it opens again.
export function Dialog({ title, onClose, children }: { title: string; onClose?: () => void; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  const open = () => element.current?.showModal();
  useEffect(() => {
    const before = document.activeElement;
    open();
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog ref={element} aria-label={title} onCancel={(event) => !onClose && event.preventDefault()} onClose={onClose ?? open}>
      <h2>{title}</h2>
      {children}
    </dialog>
  );
}

export function Confirm({ question, action, onAnswer }: { question: string; action: string; onAnswer: (isYes: boolean) => void }) {
  return (
    <Dialog title={action} onClose={() => onAnswer(false)}>
      <p>{question}</p>
      <div class="buttons">
        <button type="button" class="danger" onClick={() => onAnswer(true)}>{action}</button>
        <button type="button" autofocus onClick={() => onAnswer(false)}>Cancel</button>
      </div>
    </Dialog>
  );
}

export function saveFile(content: Blob | string, name: string) {
  const blob = typeof content === 'string' ? new Blob([content], { type: 'text/plain' }) : content;
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\p{L}\p{N}._ -]/gu, '_').slice(0, 120);
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// Browsers give pages without TLS no clipboard, but let them copy what is chosen.
function copyChosen(text: string): boolean {
  const field = document.createElement('textarea');
  field.value = text;
  field.className = 'hidden';
  (document.querySelector('dialog[open]') ?? document.body).append(field);
  field.select();
  const isCopied = document.execCommand('copy');
  field.remove();
  return isCopied;
}

async function copyText(text: string): Promise<boolean> {
  const before = document.activeElement;
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const isCopied = copyChosen(text);
    if (before instanceof HTMLElement) before.focus();
    return isCopied;
  }
}

// A button that copies a text and says whether it did.
function useCopy(text: string) {
  const [said, say] = useState('');
  const copy = () => void copyText(text).then((isCopied) => {
    say(isCopied ? 'Copied' : 'Not copied');
    setTimeout(() => say(''), 2000);
  });
  return { said, copy };
}

export function CopyButton({ text }: { text: string }) {
  const { said, copy } = useCopy(text);
  return <button type="button" class="quiet" onClick={copy}><Icon name="copy" /><span aria-live="polite">{said || 'Copy'}</span></button>;
}

export function CopyAction({ text }: { text: string }) {
  const { said, copy } = useCopy(text);
  return (
    <button type="button" class={`quiet ${said === '' ? 'icon-only' : ''}`} title="Copy" onClick={copy}>
      <Icon name="copy" /><span aria-live="polite" class={said === '' ? 'hidden' : undefined}>{said || 'Copy'}</span>
    </button>
  );
}
