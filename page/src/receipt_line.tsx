// The receipt of a reply as a quiet line: a bar with the part of the prompt that was remembered, and what it cost.
import { StackedBar } from './bars.tsx';
import { receiptSentence } from './receipt.ts';
import type { Usage } from './types.ts';

export function ReceiptLine({ usage, reason }: { usage: Usage; reason: string }) {
  return (
    <p class="receipt">
      <StackedBar size="small" whole={usage.prompt_tokens} parts={[{ kind: usage.tier === 'none' ? 'hot' : usage.tier, value: usage.reused_tokens }]} />
      <span>{receiptSentence(usage, reason)}</span>
    </p>
  );
}
