// Pictures from captions, for models that draw.
import { signal, useSignal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { useRef } from 'preact/hooks';
import { isAborted } from './api.ts';
import { Icon } from './icons.tsx';
import { announce, api, noteFailure } from './state.ts';
import { Problem } from './ui.tsx';

interface Picture {
  address: string;  // Of a blob.
  caption: string;
  seed: number | null;
  size: string;
}

// The pictures of this page. They are not stored by umad, and gone with the page.
const kPicturesMax = 60;
const pictures = signal<readonly Picture[]>([]);
const partial = signal<string | null>(null);

function addressOf(base64: string): string {
  const text = atob(base64);
  const content = new Uint8Array(text.length);
  for (let i = 0; i < text.length; ++i) content[i] = text.charCodeAt(i);
  return URL.createObjectURL(new Blob([content], { type: 'image/png' }));
}

function showPartial(address: string | null) {
  if (partial.value) URL.revokeObjectURL(partial.value);
  partial.value = address;
}

function addPicture(picture: Picture) {
  const all = [picture, ...pictures.value];
  for (const old of all.slice(kPicturesMax)) URL.revokeObjectURL(old.address);
  pictures.value = all.slice(0, kPicturesMax);
}

// What the model that comes with umad has learnt to draw.
const kExamples = ['a large green star on black', 'a small red circle on white', 'a blue square on yellow'];

export function Draw({ model, children }: { model: string; children?: ComponentChildren }) {
  const caption = useSignal('');
  const element = useRef<HTMLFormElement>(null);
  const problem = useSignal('');
  const abort = useSignal<AbortController | null>(null);

  const draw = async (form: HTMLFormElement) => {
    const fields = new FormData(form);
    const text = (name: string) => String(fields.get(name) ?? '').trim();
    const number = (name: string) => (text(name) === '' ? undefined : Number(text(name)));
    problem.value = '';
    abort.value = new AbortController();
    announce('The picture is being drawn.');
    const prompt = text('prompt');
    try {
      const options = {
        model, prompt, negative_prompt: text('negative_prompt') || undefined, size: text('size') || undefined, n: number('n'),
        steps: number('steps'), guidance: number('guidance'), seed: number('seed'), partial_images: 3,
      };
      for await (const event of api.drawPictures(options, abort.value.signal)) {
        if (event.type === 'error') throw new Error(event.error?.message ?? 'The picture was not drawn.');
        const address = addressOf(event.b64_json ?? '');
        if (event.type === 'image_generation.partial_image') {
          showPartial(address);
        } else {
          showPartial(null);
          addPicture({ address, caption: prompt, seed: event.uma?.seed ?? null, size: event.size ?? '' });
          announce('A picture is finished.');
        }
      }
    } catch (error) {
      if (!isAborted(error)) problem.value = noteFailure(error);
    }
    showPartial(null);
    abort.value = null;
  };

  return (
    <div class="draw">
      <form ref={element} class="composer" onSubmit={(event) => {
        event.preventDefault();
        void draw(event.currentTarget);
      }}>
        {children}
        <Problem text={problem.value} onClose={() => (problem.value = '')} />
        <div class="field">
          <textarea id="message" name="prompt" rows={1} required maxLength={4000} aria-label="Caption" placeholder="a large green star on black" value={caption.value}
            onInput={(event) => (caption.value = event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
              event.preventDefault();
              if (!abort.value) event.currentTarget.form?.requestSubmit();
            }} />
          <div class="line">
            <p class="note">Enter draws, Shift+Enter begins a line.</p>
            {/* With keys: a button that became the other one within its click would submit the form. */}
            {abort.value
              ? <button key="stop" type="button" class="danger" onClick={() => abort.value?.abort()}><Icon name="stop" />Stop</button>
              : <button key="draw" class="main"><Icon name="spark" />Draw</button>}
          </div>
        </div>
        <details class="fold">
          <summary><Icon name="chevron" />Options</summary>
          <div class="grid">
            <label>Not in the picture<input name="negative_prompt" type="text" maxLength={4000} /></label>
            <label>Size<input name="size" type="text" pattern="auto|\d+x\d+" placeholder="auto, or 512x512" /></label>
            <label>Pictures<input name="n" type="number" min={1} max={10} placeholder="1" /></label>
            <label>Steps<input name="steps" type="number" min={1} max={150} placeholder="the model's" /></label>
            <label>Guidance<input name="guidance" type="number" min={1} max={30} step="any" placeholder="the model's" /></label>
            <label>Seed<input name="seed" type="number" min={0} max={Number.MAX_SAFE_INTEGER} placeholder="random" /></label>
          </div>
        </details>
      </form>
      {pictures.value.length === 0 && !partial.value && (
        <ul class="examples" aria-label="Examples">
          {kExamples.map((text) => (
            <li><button type="button" disabled={abort.value !== null} onClick={() => {
              caption.value = text;
              // The field has the text after the next rendering.
              requestAnimationFrame(() => element.current?.requestSubmit());
            }}>{text}</button></li>
          ))}
        </ul>
      )}
      <div class="gallery" aria-busy={abort.value !== null}>
        {partial.value && <figure><img src={partial.value} alt="An unfinished picture" /><figcaption>Unfinished</figcaption></figure>}
        {pictures.value.map((picture, i) => (
          <figure key={picture.address}>
            <img src={picture.address} alt={picture.caption} />
            <figcaption>
              <span>{picture.caption}</span> <span class="about">{picture.size}{picture.seed !== null && `, seed ${picture.seed}`}</span>{' '}
              <a href={picture.address} download={`picture-${pictures.value.length - i}.png`}>Save</a>
            </figcaption>
          </figure>
        ))}
        {pictures.value.length > 0 && <p class="note">umad keeps no pictures. Those that are not saved are gone with this page.</p>}
      </div>
    </div>
  );
}
