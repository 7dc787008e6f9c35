// Splits Markdown into blocks that can be rendered alone, so that a growing text is parsed only at its end.

export interface Block {
  text: string;
  isOpen: boolean;  // The last block: more text may follow.
  isPlain: boolean;  // Too large or too deep for the parser: shown as text.
}

// Beyond this a whole text is shown unformatted.
export const kMarkdownCharsMax = 256 << 10;
// The parser's time can grow with the square of a block.
export const kBlockCharsMax = 16 << 10;
// A list that is longer is split between two of its items.
const kListCharsMax = 8 << 10;
// Each level of a quote is a recursion of the parser.
export const kNestingMax = 16;
// Characters that may begin a mark. Text has one in ten at most.
const kMarksMax = 2000;

const kFence = /^ {0,3}(`{3,}|~{3,})/;
const kListItem = /^ {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)/;

// Splits at blank lines that end a block. Concatenated, the blocks are the text. A code fence, a formula between $$ and a list
// stay whole up to the limit of a block.
export function splitBlocks(text: string): Block[] {
  const blocks: Block[] = [];
  let begin = 0;
  let fence = '';  // The marks that end the current fence.
  let isList = false;
  let isBlank = false;  // The line before was blank.
  const close = (end: number) => {
    if (end > begin) blocks.push({ text: text.slice(begin, end), isOpen: false, isPlain: false });
    begin = end;
    isList = false;
  };
  for (let at = 0; at < text.length;) {
    const newline = text.indexOf('\n', at);
    const end = newline < 0 ? text.length : newline + 1;
    const line = text.slice(at, Math.min(end, at + 200));  // What decides is at the beginning.
    if (fence !== '') {
      const marks = line.trim();
      if (fence === '$$' ? marks.endsWith('$$') : marks.startsWith(fence) && /^(`+|~+)$/.test(marks)) {
        fence = '';
        if (!isList) close(end);
      }
    } else if (line.trim() === '') {
      isBlank = true;
      at = end;
      continue;
    } else {
      const isItem = kListItem.test(line);
      const continues = isList && (isItem || /^\s/.test(line));
      if (isList && at - begin > kListCharsMax && isItem && !line.startsWith(' ')) close(at);
      if (isBlank && !continues && !/^ {4}|^\t/.test(line)) close(at);
      if (at === begin) isList = isItem;
      const opening = kFence.exec(line);
      if (opening) {
        if (!isList && at > begin) close(at);
        fence = opening[1]!;
      } else if (!isList && /^\s*\$\$/.test(line) && !/\$\$.*\$\$/.test(line)) {
        fence = '$$';
      }
    }
    isBlank = false;
    at = end;
  }
  close(text.length);
  const last = blocks.at(-1);
  if (last) last.isOpen = true;
  for (const block of blocks) block.isPlain = isTooMuch(block.text);
  return blocks;
}

// Whether a block could cost the parser more than a few milliseconds. A code block of any length is cheap.
function isTooMuch(text: string): boolean {
  if (kFence.test(text)) return text.length > kMarkdownCharsMax;
  if (text.length > kBlockCharsMax) return true;
  for (const line of text.split('\n')) {
    let depth = 0;
    for (const character of line) {
      if (character === '>' || character === '-' || character === '*' || character === '+') ++depth;
      else if (character !== ' ' && character !== '\t') break;
      else continue;
      if (depth > kNestingMax && !/^[ \t]*([-*_])(?:[ \t]*\1)*[ \t]*$/.test(line.slice(0, 500))) return true;
    }
    if (/^[ \t]{80,}\S/.test(line)) return true;
  }
  return /[[\]()*_~`]{64}/.test(text) || (text.match(/[[*_~`<$]/g)?.length ?? 0) > kMarksMax;
}
