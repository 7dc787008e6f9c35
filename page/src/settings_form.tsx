// The form for the settings of replies.
import { useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { kEfforts, keepSettings, kNumberFields, type NumberField, type ReplySettings, requestFields, settingsOf } from './settings.ts';
import { api } from './state.ts';
import type { SamplingDefaults } from './types.ts';

// A number, or nothing. The browser shows what is being typed ("0.0", or what is not allowed) until the field is left: an equal
// number does not replace it.
function NumberInput({ field, value, placeholder, onKeep }: { field: NumberField; value: number | undefined; placeholder: string; onKeep: (value: number | undefined) => void }) {
  const typed = useSignal<string | null>(null);
  const isRefused = useSignal(false);
  return (
    <label>
      {field.label}
      <input type="number" min={field.min} max={field.max} step={field.step} value={typed.value ?? value ?? ''} placeholder={placeholder} aria-invalid={isRefused.value}
        onInput={(event) => {
          const input = event.currentTarget;
          typed.value = input.value;
          isRefused.value = !input.checkValidity();
          if (!isRefused.value) onKeep(input.value === '' ? undefined : input.valueAsNumber);
        }}
        onBlur={() => (typed.value = null)} />
      {isRefused.value && <span class="bad" role="alert">It is {field.min} to {field.max}; {value ?? 'the default'} stays.</span>}
    </label>
  );
}

// `session` is empty for the settings with which new sessions begin.
export function SettingsForm({ session, model }: { session: string; model: string }) {
  const settings = useSignal(settingsOf(session));
  const defaults = useSignal<SamplingDefaults>({});
  useEffect(() => {
    let isCurrent = true;
    defaults.value = {};
    if (model !== '') api.samplingDefaults(model).then((read) => isCurrent && (defaults.value = read)).catch(() => {});
    return () => {
      isCurrent = false;
    };
  }, [model]);
  const change = (changed: Partial<ReplySettings>) => {
    settings.value = { ...settings.value, ...changed };
    keepSettings(session, settings.value);
  };
  let problem = '';
  try {
    requestFields(settings.value);
  } catch (error) {
    problem = (error as Error).message;
  }
  const text = (name: 'instructions' | 'schema' | 'tools' | 'stop' | 'more', label: string, rows: number, placeholder: string) => (
    <label>
      {label}
      <textarea rows={rows} spellcheck={name === 'instructions'} placeholder={placeholder} value={settings.value[name] ?? ''}
        onInput={(event) => change({ [name]: event.currentTarget.value || undefined })} />
    </label>
  );
  return (
    <form class="settings" onSubmit={(event) => event.preventDefault()}>
      <h3>Settings of replies</h3>
      <p class="note">They are kept in this browser and count from the next reply. An empty field takes the model's default.</p>
      {text('instructions', 'Instructions, sent with each reply', 3, 'They stand before the system prompt. A change makes umad compute the conversation again.')}
      <div class="grid">
        {kNumberFields.map((field) => {
          const known = defaults.value[field.name];
          return (
            <NumberInput key={field.name} field={field} value={settings.value[field.name] as number | undefined}
              placeholder={known && typeof known === 'object' ? `${known.value} (${known.source})` : ''}
              onKeep={(value) => change({ [field.name]: value })} />
          );
        })}
        <label>
          Reasoning effort
          <select value={settings.value.effort ?? ''} onChange={(event) => change({ effort: event.currentTarget.value || undefined })}>
            {kEfforts.map((effort) => <option value={effort}>{effort || 'the model\u2019s'}</option>)}
          </select>
        </label>
      </div>
      {text('stop', 'Stop texts, one in each line', 2, '')}
      {text('schema', 'JSON Schema of the reply', 4, '{"type": "object", "properties": {…}}')}
      {text('tools', 'Tools, as a JSON array', 4, '[{"type": "function", "name": "weather", "parameters": {…}}]')}
      {text('more', 'Further fields of the request, as a JSON object', 2, '{"uma": {"dry_multiplier": 0.8}}')}
      {problem !== '' && <p class="problem" role="status">{problem}</p>}
      <div class="buttons">
        <button type="button" onClick={() => {
          settings.value = {};
          keepSettings(session, {});
        }}>Clear all</button>
        {session !== '' && <button type="button" onClick={() => keepSettings('', settings.value)}>Use for new sessions</button>}
      </div>
    </form>
  );
}
