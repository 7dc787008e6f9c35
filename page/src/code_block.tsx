// Blocks of code and formulas. The libraries that colour and set them are loaded with the first of each.
import { useEffect, useRef } from 'preact/hooks';
import { CopyButton } from './ui.tsx';
import { visibleText } from './visible_text.ts';

const kHighlightCharsMax = 50_000;

export function CodeBlock({ text, language, isOpen }: { text: string; language?: string; isOpen: boolean }) {
  const place = useRef<HTMLElement>(null);
  const isColoured = !isOpen && !!language && text.length <= kHighlightCharsMax;
  useEffect(() => {
    if (!isColoured) return;
    let isCurrent = true;
    import('./highlight.ts')
      .then(({ highlighted }) => {
        const coloured = highlighted(text, language);
        if (isCurrent && coloured) place.current?.replaceChildren(coloured);
      })
      .catch(() => {});  // Without colours it is still readable.
    return () => {
      isCurrent = false;
    };
  }, [text, language, isColoured]);
  return (
    <figure class="code">
      <figcaption>
        <span>{visibleText(language || 'text').slice(0, 40)}</span>
        <CopyButton text={text} />
      </figcaption>
      <pre tabIndex={0}>
        {/* Replaced as a whole, because its children change outside of Preact. */}
        <code ref={place} key={isColoured ? text : 'plain'}>{text}</code>
      </pre>
    </figure>
  );
}

const kFormulaCharsMax = 4000;

export function Formula({ source, isBlock }: { source: string; isBlock: boolean }) {
  const place = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    if (source.length > kFormulaCharsMax) return;
    let isCurrent = true;
    import('./formula.ts')
      .then(({ formulaElement }) => {
        const element = formulaElement(source, isBlock);
        if (isCurrent && element) place.current?.replaceChildren(element);
      })
      .catch(() => {});
    return () => {
      isCurrent = false;
    };
  }, [source, isBlock]);
  return <span ref={place} key={source} class={isBlock ? 'formula block' : 'formula'}>{visibleText(source)}</span>;
}
