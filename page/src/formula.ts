// Sets formulas as MathML. Loaded with the first formula.
import DOMPurify from 'dompurify';
import temml from 'temml';

// These two would set style attributes, which the Content-Security-Policy forbids.
const kWithoutStyles = { '\\pmb': '\\boldsymbol{#1}', '\\sideset': '{}#1\\!#3#2' };

// The formula; null if it cannot be read.
export function formulaElement(source: string, isBlock: boolean): Element | null {
  const element = document.createElement('span');
  try {
    temml.render(source, element, { displayMode: isBlock, trust: false, throwOnError: true, strict: false, maxSize: [20, 100], maxExpand: 200, macros: { ...kWithoutStyles } });
  } catch {
    return null;
  }
  DOMPurify.sanitize(element, { USE_PROFILES: { mathMl: true, html: true }, ADD_ATTR: ['style'], FORBID_TAGS: ['a', 'img'], FORBID_ATTR: ['id', 'name'], IN_PLACE: true });
  return element;
}
