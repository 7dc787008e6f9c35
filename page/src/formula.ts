// Sets formulas as MathML. Loaded with the first formula.
import DOMPurify from 'dompurify';
import temml from 'temml';

// The formula; null if it cannot be read.
export function formulaElement(source: string, isBlock: boolean): Element | null {
  const element = document.createElement('span');
  try {
    temml.render(source, element, { displayMode: isBlock, trust: false, throwOnError: true, strict: false, maxSize: [20, 100], maxExpand: 200 });
  } catch {
    return null;
  }
  DOMPurify.sanitize(element, { USE_PROFILES: { mathMl: true, html: true }, ADD_ATTR: ['style'], FORBID_TAGS: ['a', 'img'], IN_PLACE: true });
  return element;
}
