// Every text and label of the page passes visibleText, whichever view shows it: the names of sessions, models, keys and files come
// from outside as well as the texts of replies.
import { options, type VNode } from 'preact';
import { visibleText } from './visible_text.ts';

const kLabels = ['aria-label', 'title', 'alt', 'placeholder', 'label'];

function shown(children: unknown): unknown {
  if (typeof children === 'string') return visibleText(children);
  return Array.isArray(children) ? children.map(shown) : children;
}

export function showTextsOnly() {
  const before = options.vnode;
  options.vnode = (vnode: VNode) => {
    if (typeof vnode.type === 'string') {
      const props = vnode.props as Record<string, unknown>;
      if (props['children'] !== undefined) props['children'] = shown(props['children']);
      for (const name of kLabels) if (typeof props[name] === 'string') props[name] = visibleText(props[name]);
    }
    before?.(vnode);
  };
}
