// The models in memory against the budget, with buttons to load and unload them.
import { useSignal } from '@preact/signals';
import { StackedBar } from './bars.tsx';
import { bytes, counted, percent } from './format.ts';
import { Icon } from './icons.tsx';
import { memoryParts } from './live_parts.ts';
import type { Snapshot } from './snapshot.ts';
import { api, mayAdminister, noteFailure, refreshModels } from './state.ts';
import { Problem } from './ui.tsx';

export function ModelMemory({ now }: { now: Snapshot }) {
  const failure = useSignal('');
  const working = useSignal<readonly string[]>([]);
  const change = async (name: string, work: () => Promise<unknown>) => {
    working.value = [...working.value, name];
    failure.value = '';
    try {
      await work();
      await refreshModels();
    } catch (error) {
      failure.value = noteFailure(error);
    }
    working.value = working.value.filter((each) => each !== name);
  };
  const parts = memoryParts(now);
  const rest = parts.find((part) => part.kind === 'rest');
  const free = now.memory.usable_bytes - now.memory.reserved_bytes;
  const kindOf = (name: string) => parts.find((part) => part.name === name && part.kind !== 'rest')?.kind ?? 'none';
  return (
    <>
      <p class="budget"><b>{bytes(now.memory.reserved_bytes)}</b> of {bytes(now.memory.usable_bytes)} reserved</p>
      <StackedBar size="large" whole={now.memory.usable_bytes} parts={parts} />
      <p class="keys">
        {rest && <span><i class="swatch rest" />contexts and buffers <b>{bytes(rest.value)}</b></span>}
        <span><i class="swatch free" />free <b>{bytes(Math.max(0, free))}</b></span>
      </p>
      <Problem text={failure.value} onClose={() => (failure.value = '')} />
      <ul class="rows">
        {now.models.map((model) => {
          const isWorking = working.value.includes(model.name);
          return (
            <li key={model.name}>
              <i class={`swatch ${kindOf(model.name)}`} />
              <span class="name">{model.name}</span>
              <span class={`about ${model.state === 'failed' ? 'bad' : ''}`}>
                {bytes(model.bytes)}, {model.state}
                {model.state === 'loading' && ` ${percent(model.load_progress)}`}
                {model.in_use > 0 && `, ${counted(model.in_use, 'request')}`}
              </span>
              {mayAdminister.value && (model.state === 'ready'
                ? <button type="button" class="quiet" disabled={isWorking} onClick={() => change(model.name, () => api.unloadModel(model.name))}>Unload<span class="hidden"> {model.name}</span></button>
                : <button type="button" class="quiet" disabled={isWorking || model.state === 'loading'} onClick={() => change(model.name, () => api.loadModel(model.name))}>Load<span class="hidden"> {model.name}</span></button>)}
            </li>
          );
        })}
      </ul>
      {now.memory.decisions.length > 0 && (
        <details class="fold"><summary><Icon name="chevron" />When memory was short</summary><ul>{now.memory.decisions.map((each) => <li>{each}</li>)}</ul></details>
      )}
    </>
  );
}
