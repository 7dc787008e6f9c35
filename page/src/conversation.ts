// One session as the page shows it: its items, the reply that is being written, and what the user can do with it.
import { computed, signal } from '@preact/signals';
import { clipped, isAborted } from './api.ts';
import { announce, api, connection, goTo, noteFailure, openId, refreshSessions, sessions } from './state.ts';
import { requestFields, settingsOf, keepSettings } from './settings.ts';
import type { SseEvent } from './sse.ts';
import { recall, remember } from './store.ts';
import { hearTabs, tellTabs } from './tabs.ts';
import { turnsOf, type Turn } from './turns.ts';
import type { InputItem, Item, ResponseObject, SessionOptions, Usage } from './types.ts';

export interface Reply {
  input: InputItem[];
  text: string;
  reasoning: string;
  calls: { name: string; arguments: string }[];
  isStopping: boolean;
  isElsewhere: boolean;  // Another tab or program reads it.
}

export interface Receipt {
  reason: string;
  usage: Usage;
}

const kShowMs = 80;
const kTellMs = 250;
const kAnnounceMs = 3000;
const kAnnouncedCharsMax = 400;
const kTailCharsMax = 64 << 10;
const kReceiptsMax = 500;

// --- Receipts are told once, at the end of a reply. The browser keeps the last ones.

export const receipts = signal<Record<string, Receipt>>(recall('receipts', {}));
export const receiptOf = (session: string, turn: number): Receipt | undefined => receipts.value[`${session}:${turn}`];

function keepReceipt(session: string, turn: number, receipt: Receipt) {
  const all = Object.entries({ ...recall<Record<string, Receipt>>('receipts', {}), [`${session}:${turn}`]: receipt });
  receipts.value = Object.fromEntries(all.slice(-kReceiptsMax));
  remember('receipts', receipts.value);
}

export class Conversation {
  readonly items = signal<readonly Item[]>([]);
  readonly hasEarlier = signal(false);
  readonly isLoaded = signal(false);
  readonly reply = signal<Reply | null>(null);
  readonly isBusy = computed(() => this.reply.value !== null);
  readonly isStopping = computed(() => this.reply.value?.isStopping ?? false);
  readonly problem = signal('');
  readonly unsent = signal<InputItem[] | null>(null);  // An input whose reply failed before it was kept.
  private oldest = '';
  private seen = '';  // What the session looked like when its items were read.
  private abort: AbortController | null = null;
  private responseId = '';
  private turn = -1;  // Of the reply that is being written.
  private shownAt = 0;
  private toldAt = 0;
  private announcedAt = 0;
  private announcedChars = 0;
  private showTimer = 0;

  constructor(readonly id: string) {}

  get isRunning() {
    return this.abort !== null;
  }

  turns = (): Turn[] => turnsOf(this.items.value);

  // --- Reading

  async load() {
    try {
      const page = await api.listItems(this.id);
      const fresh = page.data.reverse();
      // Earlier pages that were read stay, if they end where this page begins.
      const old = this.items.value;
      const at = old.findIndex((item) => item.id === fresh[0]?.id);
      const earlier = page.has_more && at > 0 ? old.slice(0, at) : [];
      this.items.value = [...earlier, ...fresh];
      if (earlier.length === 0) {
        this.hasEarlier.value = page.has_more;
        this.oldest = fresh[0]?.id ?? '';
      }
      this.isLoaded.value = true;
    } catch (error) {
      this.problem.value = noteFailure(error);
    }
  }

  async loadEarlier() {
    try {
      const page = await api.listItems(this.id, this.oldest);
      this.items.value = [...page.data.reverse(), ...this.items.value];
      this.hasEarlier.value = page.has_more;
      this.oldest = this.items.value[0]?.id ?? '';
    } catch (error) {
      this.problem.value = noteFailure(error);
    }
  }

  // Reads the items again if another tab or program has changed the session. Called with every list of sessions.
  follow() {
    const session = sessions.value.find((each) => each.session_id === this.id);
    if (!session || this.isRunning) return;
    if (session.busy && session.response_id) {
      const id = session.response_id;
      void this.read([], (abort) => api.attach(id, 0, abort));
      return;
    }
    if (session.busy && !this.reply.value) this.reply.value = emptyReply([], true);
    if (!session.busy && this.reply.value?.isElsewhere) this.reply.value = null;
    const now = `${session.turns} ${session.tokens} ${session.pending_tokens} ${session.busy}`;
    if (now === this.seen) return;
    const isFirst = this.seen === '';
    this.seen = now;
    if (!isFirst || !this.isLoaded.value) void this.load();
  }

  // --- Writing

  // Sends an input and shows the reply as it comes. Returns when the reply has ended.
  async send(input: InputItem[]) {
    if (this.isRunning) return;
    let fields;
    try {
      fields = requestFields(settingsOf(this.id));
    } catch (error) {
      this.problem.value = (error as Error).message;
      this.unsent.value = input;
      return;
    }
    await this.read(input, (abort) => api.respond(this.id, input, fields, abort));
    // A reply that ended before its first token leaves nothing behind: the input is given back.
    if (!this.items.value.some((item) => item.uma.turn === this.turn)) this.unsent.value = input;
  }

  // Shows a reply as it comes, until it has ended.
  private async read(input: InputItem[], events: (abort: AbortSignal) => AsyncGenerator<SseEvent>) {
    this.abort = new AbortController();
    this.problem.value = '';
    this.responseId = '';
    this.turn = -1;
    this.announcedChars = 0;
    this.reply.value = emptyReply(input, false);
    this.growing = emptyReply(input, false);
    announce('A reply is being written.');
    try {
      for await (const event of events(this.abort.signal)) this.takeEvent(event);
      connection.value = 'ok';
    } catch (error) {
      if (!isAborted(error)) this.problem.value = noteFailure(error);
    }
    clearTimeout(this.showTimer);
    this.showTimer = 0;
    this.abort = null;
    await this.load();
    this.reply.value = null;
    const rest = openId.value !== this.id ? '' : this.growing.text.slice(this.announcedChars).trim().slice(-kAnnouncedCharsMax);
    announce(this.problem.value !== '' ? `The reply failed: ${this.problem.value}` : `${rest} – The reply is finished.`);
    tellTabs({ type: 'changed', session: this.id });
    await refreshSessions().catch(noteFailure);
  }

  // Ends the reply; what was written stays.
  async stop() {
    const reply = this.reply.value;
    if (!reply) return;
    this.reply.value = { ...reply, isStopping: true };
    if (reply.isElsewhere) return tellTabs({ type: 'stop', session: this.id });
    const abort = this.abort;
    const timer = setTimeout(() => abort?.abort(), 3000);
    try {
      if (this.responseId === '') abort?.abort();
      else await api.cancelResponse(this.responseId);
    } catch {
      abort?.abort();
    } finally {
      if (this.abort !== abort || abort?.signal.aborted) clearTimeout(timer);
    }
  }

  // Continues from the beginning of `turn` with another input, in a new session beside this one.
  async branch(turn: number, input: InputItem[]) {
    try {
      const id = (await api.forkSession(this.id, turn - 1)).session_id;
      keepSettings(id, settingsOf(this.id));
      await refreshSessions();
      goTo('talk', id);
      const branch = conversationOf(id);
      await branch.load();
      void branch.send(input);
    } catch (error) {
      this.problem.value = noteFailure(error);
    }
  }

  // Drops all turns behind `turn`.
  async rewind(turn: number) {
    try {
      await api.rewindSession(this.id, turn);
      this.items.value = [];
      await this.load();
      tellTabs({ type: 'changed', session: this.id });
    } catch (error) {
      this.problem.value = noteFailure(error);
    }
  }

  takeTail(text: string, reasoning: string) {
    if (!this.isRunning) this.reply.value = { ...emptyReply([], true), text, reasoning };
  }

  // --- The stream

  private growing: Reply = emptyReply([], false);

  private takeEvent(event: SseEvent) {
    const body = JSON.parse(event.data);
    const reply = this.growing;
    switch (body.type) {
      case 'response.created':
        this.responseId = body.response.id;
        this.turn = body.response.uma.turn;
        return;
      case 'response.output_text.delta':
        reply.text += body.delta;
        return this.showSoon();
      case 'response.reasoning_text.delta':
        reply.reasoning += body.delta;
        return this.showSoon();
      case 'response.output_item.added':
        if (body.item.type === 'function_call') reply.calls = [...reply.calls, { name: body.item.name, arguments: '' }];
        return this.showSoon();
      case 'response.function_call_arguments.delta': {
        const last = reply.calls.at(-1);
        if (last) reply.calls = [...reply.calls.slice(0, -1), { ...last, arguments: last.arguments + body.delta }];
        return this.showSoon();
      }
      case 'response.completed': case 'response.incomplete': case 'response.failed': {
        const response = body.response as ResponseObject;
        if (response.error) this.problem.value = response.error.message;
        if (response.uma.usage) {
          keepReceipt(this.id, response.uma.turn, { reason: response.uma.reason ?? 'stop', usage: response.uma.usage });
        }
        return;
      }
      case 'error':
        this.problem.value = String(body.message ?? body.error?.message ?? 'The reply failed.');
    }
  }

  // Shows the reply as it is, at most a few times a second.
  private showSoon() {
    if (this.showTimer) return;
    this.showTimer = window.setTimeout(() => {
      this.showTimer = 0;
      if (!this.abort) return;
      const now = Date.now();
      this.shownAt = now;
      this.reply.value = { ...this.growing, isStopping: this.reply.value?.isStopping ?? false };
      if (now - this.toldAt > kTellMs) {
        this.toldAt = now;
        const { text, reasoning } = this.growing;
        tellTabs({ type: 'tail', session: this.id, text: text.slice(-kTailCharsMax), reasoning: reasoning.slice(-kTailCharsMax) });
      }
      this.announceParagraphs(now);
    }, Math.max(0, this.shownAt + kShowMs - Date.now()));
  }

  // Reads finished paragraphs aloud, not every token.
  private announceParagraphs(now: number) {
    if (openId.value !== this.id || now - this.announcedAt < kAnnounceMs) return;
    const end = this.growing.text.lastIndexOf('\n\n');
    if (end <= this.announcedChars) return;
    announce(this.growing.text.slice(this.announcedChars, end).slice(0, kAnnouncedCharsMax));
    this.announcedChars = end;
    this.announcedAt = now;
  }
}

function emptyReply(input: InputItem[], isElsewhere: boolean): Reply {
  return { input, text: '', reasoning: '', calls: [], isStopping: false, isElsewhere };
}

// --- The conversations of this page. One that is not open keeps its reply running.

const kConversationsMax = 12;
const conversations = new Map<string, Conversation>();

export function conversationOf(id: string): Conversation {
  let conversation = conversations.get(id);
  if (!conversation) {
    conversation = new Conversation(id);
    for (const [old, each] of conversations) {
      if (conversations.size < kConversationsMax) break;
      if (!each.isRunning) conversations.delete(old);
    }
    conversations.set(id, conversation);
  }
  return conversation;
}

export const isAnyReplying = () => [...conversations.values()].some((each) => each.isRunning);
export const isReplying = (id: string) => conversations.get(id)?.isRunning ?? false;

// Begins a session with its first input. Its title is the beginning of the input.
export async function startSession(options: SessionOptions, input: InputItem[], text: string) {
  const title = clipped(text.trim().split('\n')[0] ?? '', 80);
  const id = (await api.createSession({ ...options, metadata: title === '' ? undefined : { title } })).session_id;
  keepSettings(id, settingsOf(''));
  await refreshSessions().catch(noteFailure);
  goTo('talk', id);
  const conversation = conversationOf(id);
  conversation.isLoaded.value = true;
  void conversation.send(input);
}

export function followTabs() {
  hearTabs((message) => {
    const conversation = conversations.get(message.session);
    if (message.type === 'tail') conversation?.takeTail(message.text, message.reasoning);
    if (message.type === 'stop' && conversation?.isRunning) void conversation.stop();
    if (message.type === 'changed') {
      if (conversation && !conversation.isRunning) {
        conversation.reply.value = null;
        void conversation.load();
      }
      void refreshSessions().catch(noteFailure);
    }
  });
}
