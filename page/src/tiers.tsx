// The tiers of stored KV as three vessels, and the bytes that move between them.
import { percentOf } from './bars.tsx';
import { bytes, count, counted } from './format.ts';
import { calls } from './live.ts';
import { movingNow } from './live_parts.ts';
import type { Moves, Snapshot } from './snapshot.ts';

function Flow({ label, moved, isMoving, isBack }: { label: string; moved: number; isMoving: boolean; isBack: boolean }) {
  return (
    <span class={`flow ${isMoving ? 'moving' : ''} ${isBack ? 'back' : ''}`} title={label}>
      <span class="hidden">{label}: </span>
      <b>{bytes(moved)}</b>
      <svg viewBox="0 0 60 8" preserveAspectRatio="none" aria-hidden="true">
        <path d="M2 4H58" />
        <path class="head" d={isBack ? 'M7 1 2 4l5 3' : 'M53 1l5 3-5 3'} />
      </svg>
    </span>
  );
}

const kTiers = [
  ['hot', 'Hot', 'in a context', 'A reply begins at once.'],
  ['warm', 'Warm', 'in memory', 'Copied back in milliseconds.'],
  ['cold', 'Cold', 'on disk', 'Read back; survives a restart.'],
] as const;

export function Tiers({ now }: { now: Snapshot }) {
  const { hot, warm, cold } = now.tiers;
  const whole = hot.bytes + warm.bytes + cold.bytes;
  const moving = movingNow(calls.value, now.unix_ms);
  const flow = (name: keyof Moves, label: string, isBack: boolean) =>
    now.moves && <Flow label={label} moved={now.moves[name]} isMoving={moving.has(name)} isBack={isBack} />;
  const flows = [
    <>{flow('hot_warm_bytes', 'Hot to warm', false)}{flow('warm_hot_bytes', 'Back into a context', true)}</>,
    <>{flow('warm_cold_bytes', 'Warm to cold', false)}{flow('cold_warm_bytes', 'Cold to warm', true)}</>,
  ];
  return (
    <>
      <ul class="vessels">
        {kTiers.map(([kind, name, where, about], i) => {
          const tier = now.tiers[kind];
          const level = tier.bytes > 0 ? Math.max(5, percentOf(tier.bytes, whole)) : 0;
          return (
            <>
              <li class="vessel">
                <span><strong>{name}</strong> <span class="about">{where}</span></span>
                <svg aria-hidden="true"><rect class={`fill ${kind}`} y={`${100 - level}%`} width="100%" height={`${level}%`} /></svg>
                <b>{bytes(tier.bytes)}</b>
                <span class="about">{counted(tier.states, 'state')}, {counted(tier.hits_total, 'hit')}</span>
                <span class="about why">{about}</span>
              </li>
              {i < 2 && now.moves && <li class="flows">{flows[i]}</li>}
            </>
          );
        })}
      </ul>
      {!now.moves && <p class="note">What moves between the tiers is told to the administrator only.</p>}
      <p class="note">{whole === 0
        ? 'No conversation is stored yet. After a reply its state stays in the context, and moves down when others need the place.'
        : `${count(hot.states + warm.states + cold.states)} states of conversations, ${bytes(whole)}. The levels are their shares of it; beside the arrows: what has moved since the start.`}</p>
    </>
  );
}
