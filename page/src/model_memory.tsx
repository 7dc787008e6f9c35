// The models in memory against the budget, with buttons to load and unload them.
import { useSignal } from '@preact/signals';
import { bytes, counted, percent } from './format.ts';
import type { Snapshot } from './snapshot.ts';
import { api, noteFailure, refreshModels } from './state.ts';
import { Problem } from './ui.tsx';

export function Meter({ label, value, max, text }: { label: string; value: number; max: number; text: string }) {
  return (
    <div class="meter">
      <span>{label}</span>
      <meter min={0} max={max || 1} value={Math.min(value, max)} aria-label={label} />
      <span>{text}</span>
    </div>
  );
}

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
  return (
    <>
      <Meter label="Memory" value={now.memory.reserved_bytes} max={now.memory.usable_bytes}
        text={`${bytes(now.memory.reserved_bytes)} of ${bytes(now.memory.usable_bytes)} reserved`} />
      <Problem text={failure.value} onClose={() => (failure.value = '')} />
      <ul class="rows">
        {now.models.map((model) => {
          const isWorking = working.value.includes(model.name);
          return (
            <li key={model.name}>
              <span>{model.name}</span>
              <span class="about">
                {bytes(model.bytes)}, {model.state}
                {model.state === 'loading' && ` ${percent(model.load_progress)}`}
                {model.in_use > 0 && `, ${counted(model.in_use, 'request')}`}
              </span>
              {model.state === 'ready'
                ? <button type="button" disabled={isWorking} onClick={() => change(model.name, () => api.unloadModel(model.name))}>Unload<span class="hidden"> {model.name}</span></button>
                : <button type="button" disabled={isWorking || model.state === 'loading'} onClick={() => change(model.name, () => api.loadModel(model.name))}>Load<span class="hidden"> {model.name}</span></button>}
            </li>
          );
        })}
      </ul>
      {now.memory.decisions.length > 0 && (
        <details><summary>When memory was short</summary><ul>{now.memory.decisions.map((each) => <li>{each}</li>)}</ul></details>
      )}
    </>
  );
}
