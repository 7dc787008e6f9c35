// The receipt of a reply as a quiet line: a bar with the part of the prompt that was remembered, and what it cost. It unfolds to
// sentences.
import { StackedBar } from './bars.tsx';
import { receiptLine, receiptSentence } from './receipt.ts';
import type { Usage } from './types.ts';

export function ReceiptLine({ usage, reason }: { usage: Usage; reason: string }) {
  return (
    <details class="receipt">
      <summary>
        <StackedBar size="small" whole={usage.prompt_tokens} parts={[{ kind: usage.tier === 'none' ? 'hot' : usage.tier, value: usage.reused_tokens }]} />
        <span>{receiptLine(usage, reason)}</span>
      </summary>
      <p>{receiptSentence(usage)}</p>
    </details>
  );
}
