// The live view: what the daemon is doing.
import { useSignal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { Chart, type Line } from './chart.tsx';
import { bytes, count, counted, milliseconds, percent, rate, seconds } from './format.ts';
import { history, type HistoryName, isLive, problem, snapshot } from './live.ts';
import { Meter, ModelMemory } from './model_memory.tsx';
import type { Moves, Snapshot } from './snapshot.ts';
import { api, noteFailure } from './state.ts';
import { Timeline } from './timeline.tsx';
import { Problem, saveFile } from './ui.tsx';

function Panel({ title, children }: { title: string; children: ComponentChildren }) {
  return <section class="panel" aria-label={title}><h2>{title}</h2>{children}</section>;
}

const line = (label: string, name: HistoryName, kind: Line['kind']): Line => ({ label, points: history.series(name), kind });

function Summary({ now }: { now: Snapshot }) {
  const promised = now.totals.promises_kept + now.totals.promises_broken;
  return (
    <dl class="summary">
      <div><dt>State</dt><dd class={now.status === 'ok' ? undefined : 'bad'}>{now.status}</dd></div>
      <div><dt>Tokens per second</dt><dd>{rate(history.latest('tokens_per_s'))}</dd></div>
      <div><dt>Requests in flight</dt><dd>{count(now.requests_open)}</dd></div>
      <div><dt>Waiting</dt><dd>{count(now.queue_depth)}{now.oldest_waiting_s !== null && `, up to ${seconds(now.oldest_waiting_s)}`}</dd></div>
      <div><dt>Between two tokens, median</dt><dd>{milliseconds(now.latency.p50_ms)}</dd></div>
      <div><dt>99 % within</dt><dd>{milliseconds(now.latency.p99_ms)}</dd></div>
      <div><dt>First token, median</dt><dd>{milliseconds(now.latency.ttft_p50_ms)}</dd></div>
      <div><dt>Tokens on time</dt><dd>{promised > 0 ? percent(now.totals.promises_kept / promised) : 'none yet'}</dd></div>
      <div><dt>Failed requests</dt><dd>{count(now.totals.requests_failed)} of {count(now.totals.requests)}</dd></div>
      <div><dt>Running for</dt><dd>{seconds(now.uptime_s)}{now.crashes_total > 0 && `, ${counted(now.crashes_total, 'crash', 'crashes')}`}</dd></div>
    </dl>
  );
}

function Workers({ now }: { now: Snapshot }) {
  return (
    <>
      {now.workers.map((worker) => (
        <div key={worker.worker}>
          <Meter label={`Worker ${worker.worker}, ${worker.model}`} value={worker.cells_used} max={worker.cells_total}
            text={`${count(worker.cells_used)} of ${counted(worker.cells_total, 'cell')}; ${counted(worker.sequences_active, 'sequence')}, ${count(worker.queue_depth)} waiting`} />
          {worker.slots && (
            <ul class="slots" aria-label={`Slots of worker ${worker.worker}`}>
              {worker.slots.map((slot) => (
                <li class={slot.state}>
                  {slot.slot}: {slot.state}
                  {(slot.state === 'prefill' || slot.state === 'restore') && ` ${count(slot.tokens)} of ${count(slot.prompt_tokens)}`}
                  {slot.state === 'decode' && ` ${counted(slot.tokens, 'token')}`}
                  {slot.tenant && ` (${slot.tenant})`}
                </li>
              ))}
            </ul>
          )}
        </div>
      ))}
      {now.workers.length === 0 && <p class="note">No model is in memory.</p>}
    </>
  );
}

function Queue({ now }: { now: Snapshot }) {
  return (
    <div class="scroll">
      <table>
        <thead><tr><th>Position</th><th>Request</th><th>Model</th><th>Tenant</th><th>Stage</th><th>Waits for</th></tr></thead>
        <tbody>
          {now.queue.map((each) => (
            <tr><td>{each.position}</td><td>{each.request && <code>{each.request}</code>}</td><td>{each.model}</td><td>{each.tenant}</td>
              <td>{each.stage}{each.class === 'background' && ', background'}</td><td>{milliseconds(each.waited_ms)}</td></tr>
          ))}
          {now.queue.length === 0 && <tr><td colSpan={6}>Nobody waits.</td></tr>}
        </tbody>
      </table>
    </div>
  );
}

const kMoveNames: [keyof Moves, string][] = [
  ['hot_warm_bytes', 'hot → warm'], ['warm_cold_bytes', 'warm → cold'], ['cold_warm_bytes', 'cold → warm'], ['warm_hot_bytes', 'back into a context'],
];

function Tiers({ now }: { now: Snapshot }) {
  const { hot, warm, cold } = now.tiers;
  return (
    <>
      <ul class="tiers">
        {([['Hot', 'in a context', hot], ['Warm', 'in memory', warm], ['Cold', 'on disk', cold]] as const).map(([name, where, tier]) => (
          <li><strong>{name}</strong> <span class="about">{where}</span><br />{bytes(tier.bytes)}, {counted(tier.states, 'state')}<br />{counted(tier.hits_total, 'hit')}</li>
        ))}
      </ul>
      <p>{kMoveNames.map(([name, label], i) => `${i > 0 ? ' · ' : ''}${label} ${bytes(now.moves[name])}`)}</p>
      <Chart title="Stored KV" show={bytes} lines={[line('hot', 'hot_bytes', 1), line('warm', 'warm_bytes', 2), line('cold', 'cold_bytes', 3)]} />
    </>
  );
}

export function See() {
  const now = snapshot.value;
  const failure = useSignal('');
  const saveTrace = async () => {
    try {
      saveFile(await api.traceFile(60), 'trace.json');
    } catch (error) {
      failure.value = noteFailure(error);
    }
  };
  if (!now) return <p class="note">{problem.value || 'Reading…'}</p>;
  return (
    <>
      <h1 class="hidden">Live view</h1>
      <Problem text={problem.value || failure.value} onClose={() => (failure.value = '')} />
      <Summary now={now} />
      <div class="panels">
        <Panel title="Lanes">
          <Timeline />
          <Workers now={now} />
          <p>
            <button type="button" onClick={saveTrace}>Save the trace of the last minute</button>{' '}
            <span class="about">for Perfetto or Chrome&rsquo;s about:tracing</span>
          </p>
        </Panel>
        <Panel title="Speed">
          <Chart title="Tokens per second" show={(value) => rate(value)} lines={[line('generated', 'tokens_per_s', 1), line('prompts', 'prompt_per_s', 2), line('reused', 'reused_per_s', 3)]} />
          <Chart title="Longest pause" show={milliseconds} lines={[line('pause', 'pause_ms', 1)]} limit={{ value: now.contract_ms, label: 'promised' }} />
          <Chart title="Requests" show={(value) => count(value)} lines={[line('generating', 'streams', 1), line('waiting', 'queue', 2)]} />
        </Panel>
        <Panel title="Queue"><Queue now={now} /></Panel>
        <Panel title="Models in memory"><ModelMemory now={now} /></Panel>
        <Panel title="KV tiers"><Tiers now={now} /></Panel>
        <Panel title="Devices">
          {now.devices.map((device) => (
            <Meter key={device.name} label={device.name} value={device.memory_reserved_bytes} max={device.memory_usable_bytes}
              text={`${bytes(device.memory_reserved_bytes)} of ${bytes(device.memory_usable_bytes)}, busy ${percent(device.busy_ratio)}`} />
          ))}
          <p>CPU: {counted(now.threads, 'compute thread')}, {bytes(now.rss_bytes)} resident.</p>
        </Panel>
        <Panel title="Tenants">
          {now.tenants.map((tenant) => <Meter key={tenant.tenant} label={tenant.tenant} value={tenant.share} max={1}
            text={`${percent(tenant.share)} of the work, ${count(tenant.sequences_active)} active, ${count(tenant.queue_depth)} waiting`} />)}
          {now.tenants.length === 0 && <p class="note">Nobody has computed anything lately.</p>}
        </Panel>
      </div>
      <p class="about">{isLive.value ? 'Live.' : 'Not live at the moment.'} The charts keep the last hour.</p>
    </>
  );
}
