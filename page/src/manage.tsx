// Managing: models, keys, stored sessions, the configuration.
import { signal, useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { isAborted } from './api.ts';
import { ago, bytes, count, percent } from './format.ts';
import { snapshot } from './live.ts';
import { ModelMemory } from './model_memory.tsx';
import { allSessions, api, deleteSession, hasOlder, listOlder, mayAdminister, modelOf, models, noteFailure, place, pulls, refreshModels } from './state.ts';
import { titleOf } from './tree.ts';
import type { ConfigValue, KeyInfo, Model, PullState, SamplingDefaults, Session } from './types.ts';
import { Confirm, CopyButton, Problem, saveFile } from './ui.tsx';

// --- Models

// The pulls that this page has begun, by their source. They go on while another view is shown.
const begun = signal<ReadonlyMap<string, AbortController>>(new Map());
const pullProblem = signal('');
const pullEnd = signal('');

// Returns whether the model is here. The query of a URL may be secret, and is not shown.
async function pull(source: string): Promise<boolean> {
  const abort = new AbortController();
  const shown = source.includes('://') ? source.replace(/[?#].*/, '') : source;
  if (begun.value.has(shown)) return false;
  begun.value = new Map([...begun.value, [shown, abort]]);
  pullProblem.value = '';
  pullEnd.value = '';
  try {
    for await (const line of api.pullModel(source, abort.signal)) {
      if (line.error) throw new Error(line.error);
      if (pulls.value.length === 0) await refreshModels().catch(noteFailure);
    }
    pullEnd.value = `${shown} is here.`;
  } catch (error) {
    if (!isAborted(error)) pullProblem.value = noteFailure(error);
    else pullEnd.value = 'Stopped. The next pull goes on from here.';
  }
  begun.value = new Map([...begun.value].filter(([each]) => each !== shown));
  await refreshModels().catch(noteFailure);
  return pullProblem.value === '' && !abort.signal.aborted;
}

function PullRow({ state }: { state: PullState }) {
  const { source, file, completed, total } = state;
  const own = begun.value.get(source);
  return (
    <li>
      <span class="name">{source}</span>
      {total ? <progress max={1} value={completed / total} aria-label={`Download of ${source}`} /> : null}
      <span class="about" role="status">{total ? `${file ?? ''}: ${bytes(completed)} of ${bytes(total)}, ${percent(completed / total)}` : 'asking for the files…'}</span>
      {own ? <button type="button" onClick={() => own.abort()}>Stop</button> : <span class="about">begun elsewhere</span>}
    </li>
  );
}

function Pull() {
  return (
    <form class="pull" onSubmit={(event) => {
      event.preventDefault();
      const form = event.currentTarget;
      void pull(String(new FormData(form).get('source')).trim()).then((isHere) => isHere && form.reset());
    }}>
      <label>Pull a model: OWNER/REPO[:FILE-OR-QUANT][@REVISION], or a URL<input name="source" type="text" required spellcheck={false} autocomplete="off" /></label>
      <div class="buttons">
        <button class="main">Pull</button>
        <span class="about" role="status">{pullEnd.value}</span>
      </div>
      {pulls.value.length > 0 && <ul class="rows" aria-label="Downloads">{pulls.value.map((state) => <PullRow key={state.source} state={state} />)}</ul>}
      <Problem text={pullProblem.value} onClose={() => (pullProblem.value = '')} />
    </form>
  );
}

function Card({ model }: { model: string }) {
  const defaults = useSignal<SamplingDefaults | null>(null);
  const text = useSignal<string | null>(null);
  const storedText = useSignal('');
  const isStored = useSignal(false);
  const problem = useSignal('');
  useEffect(() => {
    api.samplingDefaults(model).then((read) => (defaults.value = read)).catch((error) => (problem.value = noteFailure(error)));
    api.getCard(model).then((card) => (text.value = storedText.value = card.text)).catch((error) => (problem.value = noteFailure(error)));
  }, [model]);
  const store = async () => {
    problem.value = '';
    isStored.value = false;
    try {
      text.value = storedText.value = (await api.setCard(model, text.value ?? '', storedText.value)).text;
      isStored.value = true;
      defaults.value = await api.samplingDefaults(model);
      await refreshModels();
    } catch (error) {
      problem.value = noteFailure(error);
    }
  };
  const known = Object.entries(defaults.value ?? {});
  return (
    <div class="card">
      <Problem text={problem.value} onClose={() => (problem.value = '')} />
      {known.length === 0
        ? <p class="note">The model states no defaults of sampling: those of the API count.</p>
        : (
          <table>
            <caption>Defaults of sampling</caption>
            <thead><tr><th>Name</th><th>Value</th><th>Comes from</th></tr></thead>
            <tbody>
              {known.map(([name, each]) => typeof each === 'object'
                ? <tr><td>{name}</td><td>{String(each.value)}</td><td>{each.source}</td></tr>
                : <tr><td>{name}</td><td>{each}</td><td /></tr>)}
            </tbody>
          </table>
        )}
      {text.value !== null && (
        <form onSubmit={(event) => {
          event.preventDefault();
          void store();
        }}>
          <label>Card in models.yaml<textarea rows={8} spellcheck={false} value={text.value} onInput={(event) => {
            text.value = event.currentTarget.value;
            isStored.value = false;
          }} /></label>
          <div class="buttons">
            <button>Store the card</button>
            <span class="about" role="status">{isStored.value && 'Stored. What concerns its load counts from the next one.'}</span>
          </div>
        </form>
      )}
    </div>
  );
}

function ModelRow({ model }: { model: Model }) {
  const isDeleting = useSignal(false);
  const isOpen = useSignal(false);
  const problem = useSignal('');
  const remove = () => api.deleteModel(model.id).then(refreshModels).catch((error) => (problem.value = noteFailure(error)));
  return (
    <>
      <tr>
        <td class="name">{model.id}</td><td><span class={`badge ${model.state}`}>{model.state}</span>{model.problem && <p class="note">{model.problem}</p>}{model.store && <p class="note">from {model.store}</p>}</td><td>{bytes(model.meta.size)}</td>
        <td>{model.memory_bytes ? bytes(model.memory_bytes) : ''}{model.memory_bytes && model.idle_unload_s ? `, until ${count(model.idle_unload_s)} s idle` : ''}</td>
        <td>{count(model.meta.n_params)}</td>
        <td>{model.context_length > 0 ? count(model.context_length) : '–'}</td><td>{model.capabilities.map((each) => <span class="chip">{each}</span>)}</td>
        <td class="actions">
          {mayAdminister.value && !model.parent && <button type="button" class="quiet" aria-expanded={isOpen.value} onClick={() => (isOpen.value = !isOpen.value)}>Card</button>}
          {mayAdminister.value && !model.parent && !model.store && <button type="button" class="quiet danger" onClick={() => (isDeleting.value = true)}>Delete…</button>}
        </td>
      </tr>
      {(isOpen.value || problem.value !== '') && (
        <tr><td colSpan={8}><Problem text={problem.value} onClose={() => (problem.value = '')} />{isOpen.value && <Card model={model.id} />}</td></tr>
      )}
      {isDeleting.value && (
        <Confirm question={`The file of the model "${model.id}" is deleted, if it was pulled. Its sessions stay.`} action="Delete" onAnswer={(isYes) => {
          isDeleting.value = false;
          if (isYes) void remove();
        }} />
      )}
    </>
  );
}

function Models() {
  return (
    <>
      {mayAdminister.value ? <Pull /> : <p class="note">An administrator's key can pull, load and delete models.</p>}
      <h2>Models in memory</h2>
      <div class="panel">{snapshot.value ? <ModelMemory now={snapshot.value} /> : <p class="note">Reading…</p>}</div>
      <h2>Known models</h2>
      <div class="scroll" tabIndex={0} role="region" aria-label="Models">
        <table>
          <thead><tr><th>Name</th><th>State</th><th>Weights</th><th>In memory</th><th>Parameters</th><th>Context</th><th>Can</th><th><span class="hidden">Actions</span></th></tr></thead>
          <tbody>{models.value.map((model) => <ModelRow key={model.id} model={model} />)}</tbody>
        </table>
      </div>
    </>
  );
}

// --- Keys

function Keys() {
  const keys = useSignal<KeyInfo[] | null>(null);
  const problem = useSignal('');
  const made = useSignal('');
  const deleting = useSignal('');
  const read = () => api.listKeys().then((all) => (keys.value = all)).catch((error) => (problem.value = noteFailure(error)));
  useEffect(() => void read(), []);
  const hasKeys = keys.value !== null && keys.value.length > 0;
  const make = async (form: HTMLFormElement) => {
    const fields = new FormData(form);
    const number = (name: string) => fields.get(name) === '' ? undefined : Number(fields.get(name));
    const options = {
      name: String(fields.get('name')), tenant: String(fields.get('tenant')) || undefined,
      requests_per_minute: number('requests_per_minute'), tokens_per_minute: number('tokens_per_minute'),
      deadline_ms: number('deadline_ms'), admin: fields.has('admin') || undefined,
    };
    problem.value = '';
    try {
      made.value = (await api.createKey(options)).key;
      form.reset();
      await read();
    } catch (error) {
      problem.value = noteFailure(error);
    }
  };
  return (
    <>
      <Problem text={problem.value} onClose={() => (problem.value = '')} />
      {keys.value?.length === 0 && (
        <p class="lead">
          There are no keys: umad serves the programs of the user that it runs as, on this machine. <code>umad key new NAME</code> makes the first
          one, with its line for the file that <code>http.keys_file</code> names.
        </p>
      )}
      {hasKeys && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Keys">
          <table>
            <thead><tr><th>Name</th><th>Tenant</th><th>Requests per minute</th><th>Tokens per minute</th><th>Deadline</th><th>Administrator</th><th><span class="hidden">Actions</span></th></tr></thead>
            <tbody>
              {keys.value!.map((key) => (
                <tr>
                  <td class="name">{key.name}</td><td>{key.tenant}</td><td>{key.requests_per_minute ? count(key.requests_per_minute) : 'no limit'}</td><td>{key.tokens_per_minute ? count(key.tokens_per_minute) : 'no limit'}</td>
                  <td>{key.deadline_ms === null ? 'limits.deadline_ms' : key.deadline_ms ? `${count(key.deadline_ms)} ms` : 'none'}</td><td>{key.admin ? 'yes' : 'no'}</td>
                  <td class="actions"><button type="button" class="quiet danger" onClick={() => (deleting.value = key.name)}>Delete…</button></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {deleting.value !== '' && (
        <Confirm question={`Programs that use the key "${deleting.value}" are refused from now on.`} action="Delete" onAnswer={(isYes) => {
          if (isYes) api.deleteKey(deleting.value).then(read).catch((error) => (problem.value = noteFailure(error)));
          deleting.value = '';
        }} />
      )}
      {hasKeys && (
        <>
          <h2>New key</h2>
          <form onSubmit={(event) => {
            event.preventDefault();
            void make(event.currentTarget);
          }}>
            <div class="grid">
              <label>Name<input name="name" type="text" required pattern="[A-Za-z0-9._:@\-]{1,64}" title="1 to 64 letters, digits and ._-:@" autocomplete="off" /></label>
              <label>Tenant<input name="tenant" type="text" pattern="[A-Za-z0-9._:@\-]{1,128}" placeholder="the key's own" autocomplete="off" /></label>
              <label>Requests per minute<input name="requests_per_minute" type="number" min={1} placeholder="no limit" /></label>
              <label>Tokens per minute<input name="tokens_per_minute" type="number" min={1} placeholder="no limit" /></label>
              <label>Deadline, ms<input name="deadline_ms" type="number" min={0} placeholder="the default" /></label>
              <label class="check"><input name="admin" type="checkbox" /> Administrator: may change models and keys</label>
            </div>
            <button class="main">Make a key</button>
          </form>
        </>
      )}
      {made.value !== '' && (
        <div class="made" role="status">
          <p>The key is shown once. Copy it now.</p>
          <p><code class="secret">{made.value}</code> <CopyButton text={made.value} /></p>
          <button type="button" onClick={() => (made.value = '')}>Hide</button>
        </div>
      )}
    </>
  );
}

// --- Sessions

const kSortings: Record<string, (a: Session, b: Session) => number> = {
  'last use': (a, b) => a.last_used_s - b.last_used_s,
  'tokens': (a, b) => b.tokens - a.tokens,
  'bytes': (a, b) => storedOf(b) - storedOf(a),
};
const storedOf = (session: Session) => session.hot_bytes + session.warm_bytes + session.cold_bytes;
const kRowsAtOnce = 200;

function Sessions() {
  const sorting = useSignal('bytes');
  const shown = useSignal(kRowsAtOnce);
  const chosen = useSignal<ReadonlySet<string>>(new Set());
  const isDeleting = useSignal(false);
  const problem = useSignal('');
  const all = [...allSessions.value].sort(kSortings[sorting.value]);
  const sum = (of: (session: Session) => number) => all.reduce((total, session) => total + of(session), 0);
  const removeChosen = async () => {
    try {
      for (const id of chosen.value) await deleteSession(id);
    } catch (error) {
      problem.value = noteFailure(error);
    }
    chosen.value = new Set();
  };
  return (
    <>
      <p class="lead">
        {hasOlder.value && 'The last '}{count(all.length)} sessions with {count(sum((session) => session.tokens))} tokens. Their KV: hot {bytes(sum((session) => session.hot_bytes))}, warm{' '}
        {bytes(sum((session) => session.warm_bytes))}, cold {bytes(sum((session) => session.cold_bytes))}.
      </p>
      <div class="buttons toolbar">
        <label class="inline">Sorted by <select value={sorting.value} onChange={(event) => (sorting.value = event.currentTarget.value)}>
          {Object.keys(kSortings).map((name) => <option>{name}</option>)}
        </select></label>
        <button type="button" class="danger" disabled={chosen.value.size === 0} onClick={() => (isDeleting.value = true)}>Delete {chosen.value.size || ''} chosen…</button>
      </div>
      <Problem text={problem.value} onClose={() => (problem.value = '')} />
      <div class="scroll" tabIndex={0} role="region" aria-label="Sessions">
        <table>
          <thead><tr><th><span class="hidden">Choice</span></th><th>Session</th><th>Model</th><th>Turns</th><th>Tokens</th><th>Tier</th><th>KV</th><th>Last use</th><th><span class="hidden">Actions</span></th></tr></thead>
          <tbody>
            {all.slice(0, shown.value).map((session) => {
              const id = session.session_id;
              const title = titleOf(session);
              return (
                <tr key={id}>
                  <td><input type="checkbox" aria-label={`Choose ${title}`} checked={chosen.value.has(id)} onChange={(event) => {
                    const next = new Set(chosen.value);
                    if (event.currentTarget.checked) next.add(id);
                    else next.delete(id);
                    chosen.value = next;
                  }} /></td>
                  <td class="name">{session.mode === 'chat' ? <a href={`#/talk/${id}`}>{title}</a> : `${title} (text)`}</td><td>{session.model}{modelOf(session.model) ? '' : ' (not known)'}</td><td>{count(session.turns)}</td>
                  <td>{count(session.tokens)}</td><td><span class={`dot ${session.tier}`} /> {session.tier}</td><td>{bytes(storedOf(session))}</td><td>{ago(session.last_used_s)}</td>
                  <td class="actions"><button type="button" class="quiet" onClick={() => api.exportSession(id).then((file) => saveFile(file, `${title}.umasession`)).catch((error) => (problem.value = noteFailure(error)))}>Export</button></td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {(all.length > shown.value || hasOlder.value) && (
        <button type="button" onClick={() => {
          shown.value += kRowsAtOnce;
          if (hasOlder.value) void listOlder().catch((error) => (problem.value = noteFailure(error)));
        }}>More sessions</button>
      )}
      {isDeleting.value && (
        <Confirm question={`${count(chosen.value.size)} sessions and their turns are deleted.`} action="Delete" onAnswer={(isYes) => {
          isDeleting.value = false;
          if (isYes) void removeChosen();
        }} />
      )}
    </>
  );
}

// --- Configuration

function Configuration() {
  const values = useSignal<ConfigValue[] | null>(null);
  const problem = useSignal('');
  const onlyStated = useSignal(false);
  useEffect(() => {
    api.getConfig().then((all) => (values.value = all)).catch((error) => (problem.value = noteFailure(error)));
  }, []);
  return (
    <>
      <Problem text={problem.value} />
      {values.value && (
        <>
          <label class="check"><input type="checkbox" checked={onlyStated.value} onChange={(event) => (onlyStated.value = event.currentTarget.checked)} /> Without defaults</label>
          <div class="scroll" tabIndex={0} role="region" aria-label="Settings">
            <table>
              <thead><tr><th>Setting</th><th>Value</th><th>Comes from</th></tr></thead>
              <tbody>
                {values.value.filter((each) => !onlyStated.value || each.source !== 'default').map((each) => (
                  <tr><td><code>{each.key}</code></td><td>{each.value || 'not set'}</td><td><span class={`badge ${each.source}`}>{each.source}</span>{each.place && ` ${each.place}`}</td></tr>
                ))}
              </tbody>
            </table>
          </div>
        </>
      )}
    </>
  );
}

const kParts = { models: ['Models', Models], keys: ['Keys', Keys], sessions: ['Sessions', Sessions], configuration: ['Configuration', Configuration] } as const;

const kAdministrative = ['keys', 'configuration'];

export function Manage() {
  const name = Object.hasOwn(kParts, place.value[1] ?? '') ? (place.value[1] as keyof typeof kParts) : 'models';
  const [title, Part] = kParts[name];
  return (
    <div class="manage">
      <nav class="segments" aria-label="Parts">
        {Object.entries(kParts).filter(([each]) => mayAdminister.value || !kAdministrative.includes(each)).map(([each, [label]]) => <a href={`#/manage/${each}`} aria-current={each === name ? 'page' : undefined}>{label}</a>)}
      </nav>
      <h1 class="hidden">{title}</h1>
      <Part />
    </div>
  );
}
