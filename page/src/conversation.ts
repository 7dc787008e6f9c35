// One session as the page shows it: its items, the reply that is being written, and what the user can do with it.
import { computed, signal } from '@preact/signals';
import { ApiError, clipped, isAborted, isUnknown } from './api.ts';
import { emptyReply, isLastEvent, LostReply, type Reply, type ReplyEvent, takeEvent, wholeReply } from './reply.ts';
import { announce, api, chatModels, connection, forgetSession, goTo, noteFailure, openId, refreshSessions, sessionOf, sessions } from './state.ts';
import { requestFields, settingsOf, keepSettings } from './settings.ts';
import type { SseEvent } from './sse.ts';
import { hearTabs, tellTabs } from './tabs.ts';
import { familyOf, firstVersionOf, titleOf } from './tree.ts';
import { toSend, turnsOf, type Turn } from './turns.ts';
import type { InputItem, Item, Receipt, SessionOptions } from './types.ts';

const kShowMs = 80;
const kReadAgainMs = 1000;
const kTriesMax = 3;
const kAnnounceMs = 3000;
const kAnnouncedCharsMax = 400;

export class Conversation {
  readonly items = signal<readonly Item[]>([]);
  readonly receipts = signal<ReadonlyMap<number, Receipt>>(new Map());  // By turn.
  readonly hasEarlier = signal(false);
  readonly isLoaded = signal(false);
  readonly reply = signal<Reply | null>(null);
  readonly isBusy = computed(() => this.reply.value !== null);
  readonly writtenTurn = computed(() => this.reply.value?.turn);
  readonly isStopping = computed(() => this.reply.value?.isStopping ?? false);
  readonly lost = signal<Reply | null>(null);  // A reply that was shown and is not kept, because umad ended.
  readonly problem = signal('');
  readonly isGone = signal(false);  // There is no such session.
  readonly isFull = signal(false);  // The context has no room for the input.
  readonly unsent = signal<InputItem[] | null>(null);  // An input that is not kept: it stands in the field again.
  private oldest = '';
  private seen = '';  // What the session looked like when its items were read.
  private abort: AbortController | null = null;
  private responseId = '';
  private letGo = () => {};  // Ends the showing of a reply that has no id yet.
  private lastRead = '';  // The id of the last response that was read, or could not be: it is not read again,
  private lostAt = 0;  // unless the connection was lost at this time.
  private loads = 0;
  private loadingEarlier: Promise<boolean> | null = null;
  private isDropping = false;
  private shownAt = 0;
  private announcedAt = 0;
  private announcedChars = 0;
  private showTimer = 0;

  constructor(readonly id: string) {}

  get isRunning() {
    return this.abort !== null;
  }

  readonly family = computed(() => familyOf(this.id, sessions.value));
  readonly otherModels = computed(() => {
    const own = sessionOf(this.id)?.model;
    return chatModels.value.filter(({ id, parent }) => id !== own && !parent);
  });

  turns = (): Turn[] => turnsOf(this.items.value);

  // --- Reading

  async load() {
    const load = ++this.loads;
    try {
      const [page, receipts] = await Promise.all([api.listItems(this.id), api.listReceipts(this.id)]);
      if (load !== this.loads) return;  // A later one has begun.
      const before = this.receipts.value;
      this.receipts.value = new Map(receipts.map((receipt) => [receipt.turn, receipt]));
      const fresh = page.data.reverse();
      // Earlier pages that were read stay, if they end where this page begins. A turn that has lost its receipt was dropped.
      const old = this.items.value;
      const at = old.findIndex((item) => item.id === fresh[0]?.id);
      const isWhole = old.slice(0, Math.max(at, 0)).every(({ uma }) => !before.has(uma.turn) || this.receipts.value.has(uma.turn));
      const earlier = page.has_more && at > 0 && isWhole ? old.slice(0, at) : [];
      this.items.value = [...earlier, ...fresh];
      if (earlier.length === 0) {
        this.hasEarlier.value = page.has_more;
        this.oldest = fresh[0]?.id ?? '';
      }
      this.isLoaded.value = true;
      this.isGone.value = false;
    } catch (error) {
      this.isGone.value = isUnknown(error);
      if (!this.isGone.value) this.problem.value = noteFailure(error);
    }
  }

  // Reads the turns before those that are shown. Later calls wait for the first one. Returns whether they were read.
  loadEarlier(): Promise<boolean> {
    this.loadingEarlier ??= this.readEarlier().finally(() => (this.loadingEarlier = null));
    return this.loadingEarlier;
  }

  private async readEarlier(): Promise<boolean> {
    try {
      const { oldest } = this;
      const page = await api.listItems(this.id, oldest);
      if (oldest !== this.oldest) return false;  // The items were read again meanwhile.
      this.items.value = [...page.data.reverse(), ...this.items.value];
      this.hasEarlier.value = page.has_more;
      this.oldest = this.items.value[0]?.id ?? '';
      return true;
    } catch (error) {
      this.problem.value = noteFailure(error);
      return false;
    }
  }

  // Reads all turns, which may be many pages. Throws if that fails.
  async loadAll() {
    let tries = 0;
    while (this.hasEarlier.value) {
      if (!await this.loadEarlier() && ++tries === kTriesMax) throw new Error(this.problem.value || 'The conversation changes while it is read.');
    }
  }

  // Reads what another tab or program has changed or is having written. Called with every list of sessions.
  follow() {
    const session = sessionOf(this.id);
    if (!session || this.isRunning) return;
    const response = session.busy ? session.response_id : undefined;
    const mayReadAgain = this.lostAt > 0 && Date.now() >= this.lostAt + kReadAgainMs;
    if (response && (response !== this.lastRead || mayReadAgain)) {
      void this.read(() => api.attach(response, -1, this.abort!.signal), response);
      return;
    }
    if (session.busy && !this.reply.value) this.reply.value = emptyReply(true);
    if (!session.busy && this.reply.value?.isElsewhere) this.reply.value = null;
    const now = `${session.turns} ${session.tokens} ${session.pending_tokens} ${session.busy}`;
    if (now === this.seen) return;
    const isFirst = this.seen === '';
    this.seen = now;
    if (!isFirst || !this.isLoaded.value) void this.load();
  }

  // --- Writing

  // Appends an input and shows the reply as it comes. Returns when the reply has ended. The input is kept before the reply
  // begins, so whatever ends the reply early, it can be answered again.
  async send(input: InputItem[]) {
    if (this.isRunning) {
      this.unsent.value = input;
      return;
    }
    try {
      requestFields(settingsOf(this.id));
      const added = await api.appendItems(this.id, input);
      ++this.loads;
      this.items.value = [...this.items.value, ...added.data];
      tellTabs({ type: 'changed', session: this.id });
      this.isFull.value = false;
    } catch (error) {
      this.noteProblem(error);
      this.unsent.value = input;
      return;
    }
    await this.answer();
  }

  // Has the input that waits answered; `again`: the last input, whose reply is replaced.
  async answer(again = false) {
    const fields = this.fields();
    if (!fields) return;
    if (again) fields['uma'] = { ...(fields['uma'] as object | undefined), regenerate: true };
    await this.read(() => api.respond(this.id, fields, this.abort!.signal), '', again ? this.turns().at(-1)?.turn : undefined);
  }

  // Sends an input, or has the one that waits answered, in a session that is full: from now on umad drops its oldest turns.
  async goOn(input: InputItem[]) {
    const fields = this.fields();
    if (!fields) {
      if (input.length > 0) this.unsent.value = input;
      return;
    }
    const turn = (this.turns().at(-1)?.turn ?? -1) + 1;
    const shown = input.flatMap((item): Item[] => ('role' in item && item.role === 'user' ? [{ type: 'message', id: '', uma: { turn }, role: 'user', content: item.content }] : []));
    this.items.value = [...this.items.value, ...shown];
    this.isDropping = true;
    await this.read(() => api.respond(this.id, { ...fields, truncation: 'auto', ...(input.length > 0 ? { input } : {}) }, this.abort!.signal), '');
    this.isDropping = false;
    const isKept = this.items.value.some((item) => item.id !== '' && item.uma.turn >= turn);
    if (!isKept && input.length > 0) this.unsent.value = input;
  }

  // The fields of a request for a reply; null: there is one already, or they are wrong.
  private fields(): Record<string, unknown> | null {
    if (this.isRunning) return null;
    try {
      return requestFields(settingsOf(this.id));
    } catch (error) {
      this.problem.value = (error as Error).message;
      return null;
    }
  }

  // A full context is no failure: the user chooses how to go on. Dropping turns cannot help a message that is too long by itself.
  private noteProblem(error: unknown) {
    const mayDrop = !this.isDropping && this.turns().some((turn) => turn.output.length > 0);
    this.isFull.value = mayDrop && error instanceof ApiError && error.code === 'context_length_exceeded';
    this.problem.value = this.isFull.value ? '' : noteFailure(error);
  }

  // Takes the input of the last turn back, if no reply follows it.
  async takeBack(turn: Turn) {
    const taken: InputItem[] = [];  // What is deleted stands in the field, also where a later deletion fails.
    try {
      const input = toSend(turn.input);
      for (let i = input.length - 1; i >= 0; --i) {
        await api.deleteItem(this.id, turn.input[i]!.id);
        taken.unshift(input[i]!);
      }
    } catch (error) {
      this.problem.value = noteFailure(error);
    }
    if (taken.length === 0) return;
    this.unsent.value = taken;
    await this.load();
    tellTabs({ type: 'changed', session: this.id });
  }

  // Shows a reply as it comes, until it has ended. `attached` is its id if another request has begun it.
  private async read(begin: () => AsyncGenerator<SseEvent>, attached: string, turn?: number) {
    const abort = new AbortController();
    this.abort = abort;
    this.problem.value = '';
    this.isFull.value = false;
    this.lost.value = null;
    this.responseId = attached;
    this.lostAt = 0;
    this.announcedChars = 0;
    this.reply.value = emptyReply(false, turn);
    this.growing = emptyReply(false, turn);
    announce('A reply is being written.');
    const attach = (id: string, after: number) => api.attach(id, after, abort.signal);
    const pause = (tries: number) => new Promise<void>((resolve) => setTimeout(resolve, 500 * 2 ** tries));
    const events = wholeReply(begin, attach, pause);
    let isStopped = false;
    const stopped = new Promise<void>((resolve) => (this.letGo = resolve)).then(() => (isStopped = true));
    const readAll = async () => {
      for (;;) {
        const { value: event, done } = await events.next();
        if (done || isStopped) return done ? undefined : event;
        this.take(event);
      }
    };
    try {
      const reading = readAll();
      await Promise.race([reading, stopped]);
      if (isStopped) void reading.then((event) => this.cancelUnseen(event)).catch(() => {}).finally(() => abort.abort());
      else connection.value = 'ok';
    } catch (error) {
      if (attached !== '' && error instanceof TypeError) this.lostAt = Date.now();
      const status = error instanceof ApiError ? error.status : 0;
      if (error instanceof LostReply && this.growing.text !== '') this.lost.value = this.growing;
      // A response that others began may end before it is read, or its beginning may be gone.
      if (!isAborted(error) && !(attached !== '' && (status === 404 || status === 409))) this.noteProblem(error);
    }
    clearTimeout(this.showTimer);
    this.showTimer = 0;
    this.lastRead = this.responseId;
    this.abort = null;
    if (isStopped) this.reply.value = null;
    await this.load();
    if (this.isRunning) return;  // Another reply has begun meanwhile.
    this.reply.value = null;
    const rest = openId.value !== this.id ? '' : this.growing.text.slice(this.announcedChars).trim().slice(-kAnnouncedCharsMax);
    announce(this.problem.value !== '' ? `The reply failed: ${this.problem.value}` : `${rest} – The reply is ${isStopped ? 'stopped' : 'finished'}.`);
    if (attached === '') tellTabs({ type: 'changed', session: this.id });
    await refreshSessions().catch(noteFailure);
  }

  // Ends the reply; what was written stays.
  async stop() {
    const reply = this.reply.value;
    if (!reply || reply.isElsewhere) return;
    if (this.responseId === '') {
      this.letGo();
      return;
    }
    this.reply.value = { ...reply, isStopping: true };
    const abort = this.abort;
    const timer = setTimeout(() => abort?.abort(), 3000);
    try {
      await api.cancelResponse(this.responseId);
    } catch {
      abort?.abort();
    } finally {
      if (this.abort !== abort || abort?.signal.aborted) clearTimeout(timer);
    }
  }

  // Cancels a reply that was stopped before its first event, which names it.
  private async cancelUnseen(first: ReplyEvent | undefined) {
    const id = first?.response?.id;
    if (!id) return;
    this.lastRead = id;
    await api.cancelResponse(id);
    tellTabs({ type: 'changed', session: this.id });
    await refreshSessions();
  }

  // Continues from the beginning of `turn` with another input, in another version of the conversation.
  async branch(turn: number, input: InputItem[]) {
    // Before the oldest turn is only the system prompt, also where a full context has dropped turns.
    const oldest = this.hasEarlier.value ? undefined : this.turns().find((each) => each.input.length + each.output.length > 0);
    const last = turn === oldest?.turn ? -1 : turn - 1;
    const first = input.flatMap((item) => ('role' in item && item.role === 'user' ? item.content : [])).find((part) => part.type === 'input_text');
    const title = last < 0 && first ? titleFrom(first.text) : '';
    if (!await this.beside(last, (version) => version.send(input), title)) this.unsent.value = input;
  }

  // Has the input of `turn` answered again, in another version of the conversation.
  async regenerate(turn: number) {
    await this.beside(turn, (version) => version.answer(true));
  }

  // Has the input of `turn` answered by another model, in another version of the conversation. That model reads everything anew.
  async answerBy(model: string, turn: Turn) {
    let id = '';
    try {
      await this.loadAll();
      const turns = this.turns();
      const at = turns.findIndex((each) => each.turn === turn.turn && each.part === turn.part);
      if (at < 0) throw new Error('This turn is not here any more.');
      const before = turns.slice(0, at);
      const input = toSend([...before.flatMap((each) => [...each.input, ...each.output]), ...turn.input]);
      const session = sessionOf(this.id);
      const made = await api.createSession({
        model, system: turns[0]?.system.join('\n\n') || undefined, on_full: session?.on_full ?? 'error',
        metadata: { ...this.versionMark(''), ...(session ? { title: titleOf(session) } : {}) },
      });
      id = made.session_id;
      await api.appendItems(id, input);
      keepSettings(id, settingsOf(this.id));
      await this.openVersion(id, (version) => version.answer());
    } catch (error) {
      if (id !== '' && openId.value !== id) void api.deleteSession(id).catch(() => {});
      this.problem.value = noteFailure(error);
    }
  }

  // The metadata of a version that is made from the session `from`.
  private versionMark(from: string) {
    const session = sessionOf(this.id);
    return { version_of: session ? firstVersionOf(session) : this.id, made_from: from };
  }

  private async openVersion(id: string, begin: (version: Conversation) => Promise<void>) {
    await refreshSessions();
    goTo('talk', id);
    const version = conversationOf(id);
    await version.load();
    void begin(version);
  }

  // Makes a version of the conversation with the turns up to `last` (-1: the system prompt alone), opens it, and begins there. Returns
  // whether that was done. It keeps the title if it gets none.
  private async beside(last: number, begin: (version: Conversation) => Promise<void>, title = ''): Promise<boolean> {
    try {
      const session = sessionOf(this.id);
      const shown = title || session?.name;  // A name is unique, a title is not.
      const made = await api.forkSession(this.id, last, {
        ...this.versionMark(this.id), ...(shown ? { title: shown } : {}),
      });
      keepSettings(made.session_id, settingsOf(this.id));
      await this.openVersion(made.session_id, begin);
      return true;
    } catch (error) {
      this.problem.value = noteFailure(error);
      return false;
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

  // --- The stream

  private growing: Reply = emptyReply(false);

  private take(event: ReplyEvent) {
    if (event.type === 'response.created') {
      this.responseId = event.response?.id ?? '';
      tellTabs({ type: 'begun', session: this.id });
    }
    if (isLastEvent(event) && event.response?.error) this.problem.value = event.response.error.message;
    if (takeEvent(this.growing, event)) this.showSoon();
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

// --- The conversations of this page. One that is not open keeps its reply running.

const kConversationsMax = 12;
const conversations = new Map<string, Conversation>();

export function conversationOf(id: string): Conversation {
  let conversation = conversations.get(id);
  if (!conversation) {
    conversation = new Conversation(id);
    for (const [old, each] of conversations) {
      if (conversations.size < kConversationsMax) break;
      if (!each.isRunning && !each.unsent.value) conversations.delete(old);
    }
    conversations.set(id, conversation);
  }
  return conversation;
}

export const isReplying = (id: string) => conversations.get(id)?.isRunning ?? false;

const kTitleBytesMax = 80;
const titleFrom = (text: string) => clipped(text.trim().split('\n')[0] ?? '', kTitleBytesMax);

// Begins a session with its first input. Its title is the beginning of the input. A session whose input is refused does not stay.
export async function startSession(options: SessionOptions, input: InputItem[], text: string) {
  requestFields(settingsOf(''));
  const title = titleFrom(text);
  const id = (await api.createSession({ ...options, metadata: title === '' ? undefined : { title } })).session_id;
  try {
    const added = await api.appendItems(id, input);
    keepSettings(id, settingsOf(''));
    const conversation = conversationOf(id);
    conversation.items.value = added.data;
    conversation.isLoaded.value = true;
    goTo('talk', id);
    void conversation.answer();
    void refreshSessions().catch(noteFailure);
  } catch (error) {
    void api.deleteSession(id).catch(() => {});
    throw error;
  }
}

export function followTabs() {
  hearTabs((message) => {
    const conversation = conversations.get(message.session);
    if (message.type === 'deleted') forgetSession(message.session);
    // The list names the response, and the open conversation attaches to it.
    if (message.type === 'begun') void refreshSessions().catch(noteFailure);
    if (message.type === 'changed') {
      if (conversation && !conversation.isRunning) {
        conversation.reply.value = null;
        void conversation.load();
      }
      void refreshSessions().catch(noteFailure);
    }
  });
}
