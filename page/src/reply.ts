// A reply that is being written: its events, and the text made from them.
import { ApiError, isAborted } from './api.ts';
import type { SseEvent } from './sse.ts';
import type { ResponseObject } from './types.ts';

export interface Reply {
  turn: number;  // -1: not known yet.
  text: string;
  reasoning: string;
  calls: { name: string; arguments: string }[];
  isStopping: boolean;
  isElsewhere: boolean;  // It cannot be read here, only waited for.
}

export const emptyReply = (isElsewhere: boolean, turn = -1): Reply =>
  ({ turn, text: '', reasoning: '', calls: [], isStopping: false, isElsewhere });

// The data of an event, as far as the page uses it.
export interface ReplyEvent {
  type: string;
  sequence_number?: number;
  delta?: string;
  item?: { type: string; name?: string };
  response?: ResponseObject;
  message?: string;
}

export const isLastEvent = (event: ReplyEvent) => /^response\.(completed|incomplete|failed)$/.test(event.type);

// Changes the reply by an event. False: what is shown stays the same.
export function takeEvent(reply: Reply, event: ReplyEvent): boolean {
  switch (event.type) {
    case 'response.created':
      reply.turn = event.response?.uma.turn ?? -1;
      return true;
    case 'response.output_text.delta':
      reply.text += event.delta ?? '';
      return true;
    case 'response.reasoning_text.delta':
      reply.reasoning += event.delta ?? '';
      return true;
    case 'response.output_item.added':
      if (event.item?.type !== 'function_call') return false;
      reply.calls = [...reply.calls, { name: event.item.name ?? '', arguments: '' }];
      return true;
    case 'response.function_call_arguments.delta': {
      const last = reply.calls.at(-1);
      if (last) reply.calls = [...reply.calls.slice(0, -1), { ...last, arguments: last.arguments + (event.delta ?? '') }];
      return true;
    }
    default:
      return false;
  }
}

const kTriesMax = 5;

export class LostReply extends Error {}

// The events of a reply to its last one. Where the connection is lost, reading goes on behind the last event: `attach` gets the
// id of the response and the number of that event. `pause` returns before the next of several tries.
export async function* wholeReply(
  begin: () => AsyncGenerator<SseEvent>, attach: (id: string, after: number) => AsyncGenerator<SseEvent>,
  pause: (tries: number) => Promise<void>,
): AsyncGenerator<ReplyEvent> {
  let id = '';
  let after = -1;
  for (let tries = 0; ; ++tries) {
    const isAgain = id !== '';
    try {
      for await (const { data } of isAgain ? attach(id, after) : begin()) {
        const event = JSON.parse(data) as ReplyEvent;
        id = event.response?.id ?? id;
        after = Math.max(after, event.sequence_number ?? -1);
        tries = 0;
        if (event.type === 'error') throw new Error(event.message ?? 'The reply failed.');
        yield event;
        if (isLastEvent(event)) return;
      }
    } catch (error) {
      if (isAgain && error instanceof ApiError && error.status === 404) {
        throw new LostReply('The reply was lost: umad ended while it was written.');
      }
      if (isAborted(error) || !(error instanceof TypeError) || id === '') throw error;
    }
    if (id === '' || tries >= kTriesMax) throw new TypeError('the connection was lost');
    await pause(tries);
  }
}
