// The live view: what the daemon is doing.
import { useSignal } from '@preact/signals';
import type { ComponentChildren } from 'preact';
import { Meter, percentOf, StackedBar } from './bars.tsx';
import { Chart, type Line } from './chart.tsx';
import { bytes, count, counted, milliseconds, percent, rate, seconds } from './format.ts';
import { Icon } from './icons.tsx';
import { history, type HistoryName, isLive, problem, snapshot } from './live.ts';
import { ModelMemory } from './model_memory.tsx';
import type { Agent, Slot, Snapshot } from './snapshot.ts';
import { api, noteFailure } from './state.ts';
import { Tiers } from './tiers.tsx';
import { Timeline } from './timeline.tsx';
import { Problem, saveFile } from './ui.tsx';

function Panel({ title, about, size, children }: { title: string; about?: string; size?: string; children: ComponentChildren }) {
  return (
    <section class={`panel ${size ?? ''}`} aria-label={title}>
      <h2>{title}{about && <span class="about">{about}</span>}</h2>
      {children}
    </section>
  );
}

const line = (label: string, name: HistoryName, kind: Line['kind']): Line => ({ label, points: history.series(name), kind });

interface TileProps {
  name: string;
  value: string;
  about: string;
  kind?: string;
}

// Never "100 %" where a part is missing.
const sharePercent = (part: number, whole: number) => (part < whole && part > 0.995 * whole ? `${Math.min(99.9, (100 * part) / whole).toFixed(1)} %` : percent(part / whole));

function Tile({ name, value, about, kind }: TileProps) {
  return <div class={`tile ${kind ?? ''}`}><dt>{name}</dt><dd><b>{value}</b><span class="about">{about}</span></dd></div>;
}

function Summary({ now }: { now: Snapshot }) {
  const { totals, latency } = now;
  const promised = totals.promises_kept + totals.promises_broken;
  const read = totals.prompt_tokens + totals.reused_tokens;
  const contract = milliseconds(now.contract_ms);
  return (
    <dl class="tiles">
      <Tile name="Writing" value={rate(history.latest('tokens_per_s'))} about={`tokens per second; ${now.requests_open === 0 ? 'no request is in flight' : `${counted(now.requests_open, 'request')} in flight`}`} />
      <Tile name="Remembered" value={read > 0 ? percent(totals.reused_tokens / read) : '–'} kind="remembered"
        about={read > 0 ? `${count(totals.reused_tokens)} of ${count(read)} prompt tokens were not computed again` : 'The part of the prompts that was not computed again'} />
      <Tile name="On time" value={promised > 0 ? sharePercent(totals.promises_kept, promised) : '–'} kind={totals.promises_broken > 0.01 * promised ? 'late' : ''}
        about={promised > 0 ? `${count(totals.promises_broken)} of ${count(promised)} tokens came later than was promised then; now ${contract}` : `The tokens that came within the promised ${contract}`} />
      <Tile name="Between two tokens" value={promised > 0 ? milliseconds(latency.p50_ms) : '–'} about={promised > 0 ? `in the median; 99 of 100 within ${milliseconds(latency.p99_ms)}` : 'The median time, once a reply was written'} />
      <Tile name="First token" value={totals.requests > 0 ? milliseconds(latency.ttft_p50_ms) : '–'} about={totals.requests > 0 ? `in the median; 95 of 100 within ${milliseconds(latency.ttft_p95_ms)}` : 'The median time from a request to its first token'} />
      <Tile name="Waiting" value={count(now.queue_depth)} about={now.queue_depth === 0 ? 'Nobody waits.' : now.oldest_waiting_s !== null ? `the oldest for ${seconds(now.oldest_waiting_s)}` : 'in the queue'} />
    </dl>
  );
}

const named = (agent: Agent | undefined) => agent ? [agent.program, agent.id.slice(0, 8), agent.parent && '(sub-agent)'].filter(Boolean).join(' ') : '';

function SlotView({ slot }: { slot: Slot }) {
  const { state } = slot;
  const isReading = state === 'prefill' || state === 'restore';
  return (
    <li class={`slot ${state}`} title={slot.tenant ? `Slot ${slot.slot}, ${slot.tenant}` : `Slot ${slot.slot}`}>
      <span>{state}</span>
      {isReading && <span class="about">{count(slot.tokens)} of {count(slot.prompt_tokens)}</span>}
      {state === 'decode' && <span class="about">{counted(slot.tokens, 'token')}</span>}
      {slot.tenant && <span class="about">{slot.tenant} {named(slot.agent)}</span>}
      {isReading && <svg class="bar-line" aria-hidden="true"><rect class="fill" width={`${percentOf(slot.tokens, slot.prompt_tokens)}%`} height="100%" /></svg>}
    </li>
  );
}

function Workers({ now }: { now: Snapshot }) {
  return (
    <div class="workers">
      {now.workers.map((worker) => (
        <div key={worker.worker}>
          <Meter label={`Worker ${worker.worker}, ${worker.model}`} value={worker.cells_used} max={worker.cells_total} kind="kind-0"
            text={`${count(worker.cells_used)} of ${counted(worker.cells_total, 'cell')}; ${counted(worker.sequences_active, 'sequence')}, ${count(worker.queue_depth)} waiting`} />
          {worker.slots && <ul class="slots" aria-label={`Slots of worker ${worker.worker}`}>{worker.slots.map((slot) => <SlotView key={slot.slot} slot={slot} />)}</ul>}
        </div>
      ))}
      {now.workers.length === 0 && <p class="note">No model is in memory.</p>}
    </div>
  );
}

function Queue({ now }: { now: Snapshot }) {
  if (now.queue_depth === 0) {
    return <p class="note">Nobody waits. A request waits here while all slots are taken, its model is loaded, or its pictures are read.</p>;
  }
  return (
    <>
      <ol class="queue">
        {now.queue.map((each) => (
          <li key={`${each.position} ${each.request}`}>
            <span class="position">{each.position}</span>
            <span class="name">{each.tenant} <span class="about">{named(each.agent)} {each.model}{each.request && <> <code>{each.request.slice(0, 8)}</code></>}</span></span>
            <span class="about">{each.stage}{each.class === 'background' && ', background'}</span>
            <b>{milliseconds(each.waited_ms)}</b>
          </li>
        ))}
      </ol>
      {now.queue_depth > now.queue.length && <p class="note">And {count(now.queue_depth - now.queue.length)} more.</p>}
    </>
  );
}

function Tenants({ now }: { now: Snapshot }) {
  if (now.tenants.length === 0) return <p class="note">Nobody has computed anything lately. Who does shares the machine in equal parts.</p>;
  const kinds = now.tenants.map((tenant, i) => ({ kind: `kind-${i % 6}`, value: tenant.share }));
  return (
    <>
      <StackedBar size="large" whole={1} parts={kinds} />
      <ul class="rows">
        {now.tenants.map((tenant, i) => (
          <li key={tenant.tenant}>
            <i class={`swatch ${kinds[i]!.kind}`} /><span class="name">{tenant.tenant}</span>
            <span class="about">{count(tenant.sequences_active)} active, {count(tenant.queue_depth)} waiting</span><b>{percent(tenant.share)}</b>
          </li>
        ))}
      </ul>
    </>
  );
}

function Devices({ now }: { now: Snapshot }) {
  return (
    <>
      {now.devices.map((device) => (
        <Meter key={device.name} label={device.name} value={device.memory_reserved_bytes} max={device.memory_usable_bytes} kind="kind-1"
          text={`${bytes(device.memory_reserved_bytes)} of ${bytes(device.memory_usable_bytes)}, busy ${percent(device.busy_ratio)}`} />
      ))}
      <p class="device">CPU <span class="about">{counted(now.threads, 'compute thread')}, {bytes(now.rss_bytes)} resident</span></p>
    </>
  );
}

function StateLine({ now }: { now: Snapshot }) {
  const { totals } = now;
  return (
    <p class="state-line">
      <span class={`dot ${now.status === 'ok' ? 'kept' : 'late'}`} />
      <strong>{now.status === 'ok' ? 'All is well' : 'Degraded'}</strong>
      <span class="about">
        running for {seconds(now.uptime_s)} · {counted(totals.requests, 'request')}, {count(totals.requests_failed)} failed
        {now.crashes_total > 0 && ` · ${counted(now.crashes_total, 'crash', 'crashes')}`} · {isLive.value ? 'live' : 'not live at the moment'}
      </span>
    </p>
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
    <div class="see">
      <h1 class="hidden">Live view</h1>
      <Problem text={problem.value || failure.value} onClose={() => (failure.value = '')} />
      <StateLine now={now} />
      <Summary now={now} />
      <div class="panels">
        <Panel title="Lanes" about="what is computed, call by call" size="wide">
          <button type="button" class="quiet corner" title="A file for Perfetto or Chrome's about:tracing" onClick={saveTrace}>
            <Icon name="import" />Save the trace<span class="hidden"> of the last minute</span>
          </button>
          <Timeline />
          <Workers now={now} />
        </Panel>
        <Panel title="KV tiers" about="where conversations are remembered" size="half fills"><Tiers now={now} /></Panel>
        <Panel title="Models in memory" size="half"><ModelMemory now={now} /></Panel>
        <Panel title="Queue"><Queue now={now} /></Panel>
        <Panel title="Tenants" about="shares of the last ten seconds"><Tenants now={now} /></Panel>
        <Panel title="Devices"><Devices now={now} /></Panel>
        <Panel title="Speed" size="wide">
          <div class="charts">
            <Chart title="Tokens per second" show={(value) => rate(value)} lines={[line('written', 'tokens_per_s', 'decode'), line('read', 'prompt_per_s', 'prefill'), line('remembered', 'reused_per_s', 'warm')]} />
            <Chart title="Longest pause" show={milliseconds} lines={[line('pause', 'pause_ms', 'decode'), line('promised', 'contract_ms', 'promise')]} />
            <Chart title="Requests" show={(value) => count(value)} lines={[line('writing', 'streams', 'decode'), line('waiting', 'queue', 'draw')]} />
            <Chart title="Stored KV" show={bytes} lines={[line('hot', 'hot_bytes', 'hot'), line('warm', 'warm_bytes', 'warm'), line('cold', 'cold_bytes', 'cold')]} />
          </div>
        </Panel>
      </div>
    </div>
  );
}
