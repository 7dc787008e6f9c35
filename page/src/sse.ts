// Server-sent events: the parser, and reading them from the body of an answer.

export interface SseEvent {
  event: string;
  data: string;
}

// A picture of 1,024 x 1,024 pixels as base64 has at most 4 MiB.
const kBufferCharsMax = 32 << 20;

// Takes the text of a stream in pieces of any length. Line ends may be LF, CRLF or CR.
export class SseParser {
  private pieces: string[] = [];  // Of the line whose end has not come.
  private pieceChars = 0;
  private isFirst = true;
  private skipsLineFeed = false;  // The last piece ended with CR.
  private event = '';
  private data: string[] = [];
  private dataChars = 0;

  push(text: string): SseEvent[] {
    if (this.isFirst && text !== '') {
      this.isFirst = false;
      if (text.charCodeAt(0) === 0xfeff) text = text.slice(1);
    }
    if (this.skipsLineFeed && text !== '') {
      this.skipsLineFeed = false;
      if (text.startsWith('\n')) text = text.slice(1);
    }
    const events: SseEvent[] = [];
    let begin = 0;
    for (const end of text.matchAll(/\r\n|\r|\n/g)) {
      this.keepPiece(text.slice(begin, end.index));
      this.takeLine(this.pieces.join(''), events);
      this.pieces = [];
      this.pieceChars = 0;
      begin = end.index + end[0].length;
      this.skipsLineFeed = end[0] === '\r' && begin === text.length;
    }
    this.keepPiece(text.slice(begin));
    if (this.pieceChars + this.dataChars > kBufferCharsMax) throw new Error('an event of the stream is too long');
    return events;
  }

  private keepPiece(text: string) {
    if (text !== '') this.pieces.push(text);
    this.pieceChars += text.length;
  }

  private takeLine(line: string, events: SseEvent[]) {
    if (line === '') {
      if (this.data.length > 0) events.push({ event: this.event || 'message', data: this.data.join('\n') });
      this.event = '';
      this.data = [];
      this.dataChars = 0;
      return;
    }
    const colon = line.indexOf(':');
    if (colon === 0) return;  // A comment.
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? '' : line.slice(colon + 1);
    if (value.startsWith(' ')) value = value.slice(1);
    if (field === 'event') this.event = value;
    if (field === 'data') {
      this.data.push(value);
      this.dataChars += value.length;
    }
  }
}

async function* readText(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      yield decoder.decode(value, { stream: true });
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<SseEvent> {
  const parser = new SseParser();
  for await (const text of readText(body)) yield* parser.push(text);
}

// Reads lines of JSON, as Ollama's API sends them.
export async function* readJsonLines(body: ReadableStream<Uint8Array>): AsyncGenerator<unknown> {
  let rest = '';
  for await (const text of readText(body)) {
    const lines = (rest + text).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) if (line.trim() !== '') yield JSON.parse(line);
  }
  if (rest.trim() !== '') yield JSON.parse(rest);
}
