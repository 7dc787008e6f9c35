// Markdown of replies as elements. Replies are hostile: no HTML is ever made from their text. The parser's tokens become
// elements of a fixed set, raw HTML stays text, remote pictures become links.
import { Component, type ComponentChild } from 'preact';
import { Marked, type Token, type Tokens } from 'marked';
import { type Block, kMarkdownCharsMax, splitBlocks } from './blocks.ts';
import { CodeBlock, Formula } from './code_block.tsx';
import { safeLink, visibleCode, visibleText } from './visible_text.ts';

interface FormulaToken extends Tokens.Generic {
  type: 'formula';
  text: string;
  isBlock: boolean;
}

const formula = (raw: string, text: string, isBlock: boolean): FormulaToken => ({ type: 'formula', raw, text, isBlock });

const parser = new Marked({
  gfm: true,
  extensions: [
    {
      name: 'formula_block',
      level: 'block',
      start: (source) => source.search(/\$\$|\\\[/),
      tokenizer(source) {
        const found = /^ {0,3}(?:\$\$([^$]+)\$\$|\\\[([^]+?)\\\])[ \t]*(?:\n|$)/.exec(source);
        return found ? formula(found[0], (found[1] ?? found[2] ?? '').trim(), true) : undefined;
      },
    },
    {
      name: 'formula',
      level: 'inline',
      start: (source) => source.search(/\$|\\\(|\\\[/),
      tokenizer(source) {
        const found = /^(?:\$\$([^$\n]+)\$\$|\$(?!\s)([^$\n]{1,500}?)(?<!\s)\$(?!\d)|\\\(([^\n]{1,500}?)\\\)|\\\[([^\n]{1,500}?)\\\])/.exec(source);
        return found ? formula(found[0], (found[1] ?? found[2] ?? found[3] ?? found[4] ?? '').trim(), false) : undefined;
      },
    },
  ],
});

const kEntities: Record<string, string> = {
  amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', copy: '©', reg: '®', deg: '°', times: '×', middot: '·',
  hellip: '…', ndash: '–', mdash: '—', laquo: '«', raquo: '»', larr: '←', rarr: '→', euro: '€', para: '¶', sect: '§',
};

function plainText(text: string): string {
  const decoded = text.replace(/&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]{2,8}));/g, (whole, decimal, hex, name) => {
    if (name) return kEntities[name] ?? whole;
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) ? String.fromCodePoint(code) : '\ufffd';
  });
  return visibleText(decoded);
}

function link(address: string, content: ComponentChild): ComponentChild {
  const href = safeLink(address);
  return href ? <a href={href} target="_blank" rel="noopener noreferrer">{content}</a> : <span>{content}</span>;
}

function inlines(tokens: readonly Token[] | undefined): ComponentChild[] {
  return (tokens ?? []).map(inline);
}

function inline(token: Token): ComponentChild {
  switch (token.type) {
    case 'strong': return <strong>{inlines(token.tokens)}</strong>;
    case 'em': return <em>{inlines(token.tokens)}</em>;
    case 'del': return <del>{inlines(token.tokens)}</del>;
    case 'codespan': return <code>{visibleCode(token.text)}</code>;
    case 'br': return <br />;
    case 'link': return link(token.href, inlines(token.tokens));
    case 'image': return link(token.href, `[picture: ${plainText(token.text || token.href)}]`);
    case 'formula': return <Formula source={token.text} isBlock={false} />;
    case 'html': return visibleText(token.raw);
    case 'checkbox': return null;  // The list item shows it.
    case 'escape': return visibleText(token.text);
    case 'text': return token.tokens ? inlines(token.tokens) : plainText(token.text);
    default: return visibleText(token.raw);
  }
}

function blocks(tokens: readonly Token[] | undefined, isOpen: boolean): ComponentChild[] {
  return (tokens ?? []).map((token) => block(token, isOpen));
}

function cell(Tag: 'th' | 'td', content: Tokens.TableCell): ComponentChild {
  return <Tag dir="auto" class={content.align ? `align-${content.align}` : undefined}>{inlines(content.tokens)}</Tag>;
}

function block(token: Token, isOpen: boolean): ComponentChild {
  switch (token.type) {
    case 'space': case 'def': return null;
    case 'heading': {
      const Tag = `h${Math.min(6, token.depth + 2)}` as 'h3';  // The page itself has h1 and h2.
      return <Tag dir="auto">{inlines(token.tokens)}</Tag>;
    }
    case 'paragraph': return <p dir="auto">{inlines(token.tokens)}</p>;
    case 'text': return token.tokens ? inlines(token.tokens) : plainText(token.text);
    case 'blockquote': return <blockquote dir="auto">{blocks(token.tokens, isOpen)}</blockquote>;
    case 'hr': return <hr />;
    case 'code': return <CodeBlock text={visibleCode(token.text)} language={(token.lang ?? '').split(/\s/)[0]} isOpen={isOpen} />;
    case 'formula_block': case 'formula': return <Formula source={token.text} isBlock={token.isBlock} />;
    case 'html': return <p class="raw">{visibleText(token.raw.trimEnd())}</p>;
    case 'list': {
      const items = (token as Tokens.List).items.map((item) => (
        <li dir="auto" class={item.task ? 'task' : undefined}>
          {item.task && <input type="checkbox" disabled checked={item.checked} aria-label={item.checked ? 'done' : 'not done'} />}
          {blocks(item.tokens, isOpen)}
        </li>
      ));
      return token.ordered ? <ol dir="auto" start={Number(token.start) || 1}>{items}</ol> : <ul dir="auto">{items}</ul>;
    }
    case 'table': {
      const table = token as Tokens.Table;
      return (
        <div class="scroll" tabIndex={0} role="region" aria-label="Table">
          <table>
            <thead><tr>{table.header.map((content) => cell('th', content))}</tr></thead>
            <tbody>{table.rows.map((row) => <tr>{row.map((content) => cell('td', content))}</tr>)}</tbody>
          </table>
        </div>
      );
    }
    default: return inline(token);
  }
}

// The elements of one block. A text that the parser cannot take is shown as it is.
export function renderBlock(source: Block): ComponentChild {
  if (source.isPlain) return <pre class="plain" dir="auto">{visibleText(source.text)}</pre>;
  try {
    return blocks(parser.lexer(source.text), source.isOpen);
  } catch {
    return <pre class="plain" dir="auto">{visibleText(source.text)}</pre>;
  }
}

class MarkdownBlock extends Component<{ block: Block }> {
  override shouldComponentUpdate(next: { block: Block }) {
    const now = this.props.block;
    return next.block.text !== now.text || next.block.isOpen !== now.isOpen;
  }
  override render() {
    return <>{renderBlock(this.props.block)}</>;
  }
}

// A text of any length. While it grows (`isOpen`), only its last block is parsed again.
export function Markdown({ text, isOpen = false, asText = false }: { text: string; isOpen?: boolean; asText?: boolean }) {
  if (asText) return <pre class="plain" dir="auto">{visibleText(text)}</pre>;
  if (text.length > kMarkdownCharsMax) {
    return (
      <>
        <p class="note">This text is too long to be formatted. It is shown as text.</p>
        <pre class="plain" dir="auto">{visibleText(text)}</pre>
      </>
    );
  }
  const parts = splitBlocks(text);
  const last = parts.at(-1);
  if (last && !isOpen) last.isOpen = false;
  return <div class="markdown">{parts.map((part, i) => <MarkdownBlock key={i} block={part} />)}</div>;
}
