import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { ComponentChild, VNode } from 'preact';
import { kMarkdownCharsMax, splitBlocks } from '../src/blocks.ts';
import { renderBlock } from '../src/markdown.tsx';
import { pictureData, safeLink, visibleText } from '../src/visible_text.ts';

interface Element {
  tag: string;
  props: Record<string, unknown>;
}

// All elements and the text of a rendered Markdown source. Components are listed by their names.
function rendered(source: string): { elements: Element[]; text: string } {
  const elements: Element[] = [];
  let text = '';
  const visit = (node: ComponentChild | ComponentChild[]): void => {
    if (Array.isArray(node)) return node.forEach(visit);
    if (node === null || node === undefined || typeof node === 'boolean') return;
    if (typeof node !== 'object') {
      text += String(node);
      return;
    }
    const vnode = node as VNode<Record<string, unknown>>;
    const { children, ...props } = vnode.props;
    const tag = typeof vnode.type === 'string' ? vnode.type : vnode.type.name;
    elements.push({ tag, props });
    visit(children as ComponentChild);
  };
  for (const block of splitBlocks(source)) visit(renderBlock(block));
  return { elements, text };
}

const kTags = new Set(['p', 'h3', 'h4', 'h5', 'h6', 'ul', 'ol', 'li', 'blockquote', 'pre', 'code', 'strong', 'em', 'del', 'br', 'hr',
  'a', 'span', 'table', 'thead', 'tbody', 'tr', 'th', 'td', 'div', 'input', 'CodeBlock', 'Formula']);
const kProps = new Set(['href', 'target', 'rel', 'class', 'dir', 'start', 'type', 'disabled', 'checked', 'aria-label', 'tabIndex', 'role',
  'text', 'language', 'isOpen', 'source', 'isBlock']);

function assertHarmless(source: string) {
  const { elements } = rendered(source);
  for (const { tag, props } of elements) {
    assert.ok(kTags.has(tag), `tag ${tag}`);
    for (const name of Object.keys(props)) assert.ok(kProps.has(name), `property ${name} of ${tag}`);
    if (tag !== 'a') continue;
    assert.match(String(props['href']), /^(https?:|mailto:)/);
    assert.equal(props['target'], '_blank');
    assert.equal(props['rel'], 'noopener noreferrer');
  }
}

test('raw HTML stays text', () => {
  for (const source of [
    '<script>alert(1)</script>', 'a <img src=x onerror=alert(1)> b', '<a href="javascript:alert(1)" onclick="x()">x</a>',
    '<svg/onload=alert(1)>', '<iframe srcdoc="<script>1</script>"></iframe>', '> <style>*{display:none}</style>',
    '- <base href="//evil">', '| <b onmouseover=x> |\n|-|\n| <i> |', '<math><mtext></p><script>1</script>', '<form action=x><button>',
    '<details open ontoggle=alert(1)>', '<!-- <script> -->', '<![CDATA[<script>]]>', '**<u onclick=x>b</u>**',
  ]) {
    assertHarmless(source);
    const { text } = rendered(source);
    assert.ok(text.includes('<'), source);
  }
});

test('only links to the web and to mail are links', () => {
  for (const address of [
    'javascript:alert(1)', 'JaVaScRiPt:alert(1)', ' javascript:alert(1)', 'java\tscript:alert(1)', '&#106;avascript:alert(1)',
    'javascript&colon;alert(1)', 'data:text/html,<script>1</script>', 'vbscript:x', 'file:///etc/passwd', 'blob:x', '//evil', '/v1/models',
    'models', '#x', '\u0001javascript:alert(1)', 'view-source:http://x', 'ftp://x',
  ]) {
    for (const source of [`[x](<${address}>)`, `[x](${address})`, `![x](${address})`, `<${address}>`, `[x]\n\n[x]: ${address}`, `[x][y]\n[y]: <${address}>`]) {
      assertHarmless(source);
    }
    assert.equal(safeLink(address), null, address);
  }
  assert.equal(safeLink('https://example.org/a?b#c'), 'https://example.org/a?b#c');
  assert.equal(safeLink('mailto:a@example.org'), 'mailto:a@example.org');
  const link = rendered('[x](https://example.org "title")').elements.find(({ tag }) => tag === 'a');
  assert.equal(link?.props['href'], 'https://example.org/');
});

test('a remote picture is a link, never a picture', () => {
  const { elements, text } = rendered('![a cat](https://example.org/cat.png) ![](data:image/png;base64,AAAA)');
  assert.deepEqual(elements.filter(({ tag }) => tag === 'img' || tag === 'image'), []);
  assert.equal(elements.filter(({ tag }) => tag === 'a').length, 1);
  assert.match(text, /\[picture: a cat\]/);
});

test('only pictures in base64 are shown as pictures', () => {
  assert.equal(pictureData('data:image/png;base64,iVBORw0='), 'data:image/png;base64,iVBORw0=');
  for (const address of ['data:image/svg+xml;base64,AAAA', 'data:text/html;base64,AAAA', 'https://x/a.png', 'data:image/png,<svg>', '', null]) {
    assert.equal(pictureData(address), null);
  }
});

test('terminal escapes and marks of direction show as characters', () => {
  assert.equal(visibleText('\u001b[31mred\u0007\u0000'), '␛[31mred␇␀');
  assert.equal(visibleText('a\u202eb\u2066c\u009b1m'), 'a<U+202E>b<U+2066>c<U+009B>1m');
  assert.equal(visibleText('tab\tline\r\nend 👩‍👩‍👧'), 'tab\tline\nend 👩‍👩‍👧');
  assert.equal(visibleText('ខ\u200bម ا\u200fب'), 'ខ\u200bម ا\u200fب', 'marks that scripts need');
  assert.equal(rendered('`\u001b[2J`').text, '␛[2J');
  assert.equal(rendered('`a\u200bb`').text, 'a<U+200B>b', 'in code they are a mistake');
  assert.equal(rendered('&#27;[2J &lt;b&gt; &amp;amp;').text, '␛[2J <b> &amp;');
  const code = rendered('```sh\n\u001b]0;x\u0007\n```').elements.find(({ tag }) => tag === 'CodeBlock');
  assert.equal(code?.props['text'], '␛]0;x␇');
});

// A parser whose time grows with the square of these would take hours.
test('hostile sizes are rendered', { timeout: 300_000 }, () => {
  const size = 1 << 20;
  const short = kMarkdownCharsMax;
  const sources: Record<string, string> = {
    'nested quotes': '>'.repeat(size), 'nested quotes with blanks': '> '.repeat(size / 2), 'nested lists': '- '.repeat(size / 2),
    'brackets': '['.repeat(size), 'stars': '*'.repeat(size), 'backticks': '`'.repeat(size), 'tags': '<a'.repeat(size / 2),
    'lines of quotes': '>>>>>>>>>>\n'.repeat(short / 11), 'links': '[a]('.repeat(short / 4), 'emphasis': '*a_b'.repeat(short / 4),
    'blocks of stars': `${'*a '.repeat(500)}\n\n`.repeat(short / 1502), 'formulas': `${'$a $'.repeat(400)}\n\n`.repeat(short / 1602),
    'indented lists': Array.from({ length: 2000 }, (_, i) => `${' '.repeat(i % 60)}- a`).join('\n'), 'tables': '|a|b|\n|-|-|\n'.repeat(short / 12),
    'fences': '```\n'.repeat(short / 4), 'lines': 'a\n'.repeat(short / 2), 'blanks': ' '.repeat(short), 'entities': '&#x41;'.repeat(short / 6),
  };
  for (const source of Object.values(sources)) assertHarmless(source);
});

test('blocks are the text, and a growing text changes only its last block', () => {
  const source = '# A\n\ntext\nmore\n\n- one\n\n  two\n- three\n\n```js\na\n\nb\n```\n\n$$\nx\n\ny\n$$\n\n> q\n\nend\n';
  const whole = splitBlocks(source).map(({ text }) => text);
  assert.equal(whole.join(''), source);
  assert.ok(whole.some((text) => text.startsWith('- one') && text.includes('- three')), 'a list is one block');
  assert.ok(whole.some((text) => text.includes('a\n\nb')), 'a fence is one block');
  for (let end = 1; end < source.length; ++end) {
    const blocks = splitBlocks(source.slice(0, end));
    assert.equal(blocks.map(({ text }) => text).join(''), source.slice(0, end));
    // All blocks but the last two are final: the last may still be joined by a line that continues it.
    blocks.slice(0, -2).forEach(({ text }, i) => assert.equal(text, whole[i], `block ${i} at ${end}`));
  }
});

test('Markdown becomes elements', () => {
  const { elements, text } = rendered('**b** *i* `c` ~~d~~ $x^2$ a $5 and $6\n\n1. x\n2. y\n\n- [x] done\n\n\\(y\\)\n\n$$z$$\n');
  const tags = elements.map(({ tag }) => tag);
  for (const tag of ['strong', 'em', 'code', 'del', 'ol', 'ul', 'li', 'input']) assert.ok(tags.includes(tag), tag);
  assert.deepEqual(elements.filter(({ tag }) => tag === 'Formula').map(({ props }) => [props['source'], props['isBlock']]),
    [['x^2', false], ['y', false], ['z', true]]);
  assert.ok(text.includes('a $5 and $6'));
});
