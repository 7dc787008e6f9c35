// The items of a conversation as turns, for showing them and for sending an input again.
import type { ContentPart, InputItem, InputPart, Item } from './types.ts';
import { pictureData } from './visible_text.ts';

// A turn, or a part of one: items that were added without a reply are one turn, whose questions and replies alternate.
export interface Turn {
  turn: number;
  part: number;
  system: string[];
  input: Item[];  // Messages of the user and results of tool calls.
  output: Item[];  // Reasoning, text and tool calls of the reply.
}

type Content = string | readonly ContentPart[];  // A string: one text.

export const textOf = (content: Content): string =>
  typeof content === 'string' ? content : content.map((part) => part.text ?? '').join('');

export const picturesOf = (content: Content): (string | null)[] =>
  typeof content === 'string' ? [] : content.filter((part) => part.type === 'input_image').map((part) => pictureData(part.image_url));

export function turnsOf(items: readonly Item[]): Turn[] {
  const turns: Turn[] = [];
  for (const item of items) {
    const isInput = item.type === 'function_call_output' || (item.type === 'message' && item.role === 'user');
    let turn = turns.at(-1);
    if (!turn || turn.turn !== item.uma.turn) {
      turn = { turn: item.uma.turn, part: 0, system: [], input: [], output: [] };
      turns.push(turn);
    } else if (isInput && turn.output.length > 0) {
      turn = { turn: item.uma.turn, part: turn.part + 1, system: [], input: [], output: [] };
      turns.push(turn);
    }
    if (item.type === 'message' && (item.role === 'system' || item.role === 'developer')) turn.system.push(textOf(item.content));
    else (isInput ? turn.input : turn.output).push(item);
  }
  return turns;
}

// The items of the parts of a turn that stand before this one.
export const itemsBefore = (part: Turn, turns: readonly Turn[]): Item[] =>
  turns.filter((each) => each.turn === part.turn && each.part < part.part).flatMap((each) => [...each.input, ...each.output]);

const partsToSend = (content: readonly ContentPart[]): InputPart[] =>
  content.map((part) => {
    if (part.type !== 'input_image') return { type: 'input_text', text: part.text ?? '' };
    const picture = pictureData(part.image_url);
    if (!picture) throw new Error('A picture of this message is not here any more, so it cannot be sent again.');
    return { type: 'input_image', image_url: picture };
  });

// Items, to be sent again. Throws an Error if a picture of them is gone.
export function toSend(items: readonly Item[]): InputItem[] {
  return items.filter((item) => item.type !== 'reasoning').map((item): InputItem => {
    if (item.type === 'function_call_output') {
      const output = typeof item.output === 'string' ? item.output : partsToSend(item.output);
      return { type: 'function_call_output', call_id: item.call_id, output };
    }
    if (item.type === 'function_call') return { type: 'function_call', call_id: item.call_id, name: item.name, arguments: item.arguments };
    if (item.type !== 'message') throw new Error('This input cannot be sent again.');
    return item.role === 'assistant' ? { role: 'assistant', content: textOf(item.content) } : { role: 'user', content: partsToSend(item.content) };
  });
}

export const messageOfUser = (text: string, pictures: readonly string[]): InputItem => ({
  role: 'user',
  content: [
    ...pictures.map((image_url) => ({ type: 'input_image' as const, image_url })),
    ...(text === '' ? [] : [{ type: 'input_text' as const, text }]),
  ],
});

// A conversation as a Markdown file.
export function asMarkdown(title: string, turns: readonly Turn[]): string {
  const parts = [`# ${title}`];
  for (const turn of turns) {
    for (const text of turn.system) parts.push(`## System\n\n${text}`);
    for (const item of turn.input) {
      if (item.type === 'message') parts.push(`## You\n\n${picturesOf(item.content).map(() => '[picture]\n\n').join('')}${textOf(item.content)}`);
      if (item.type === 'function_call_output') parts.push(`## Result of a tool call\n\n${picturesOf(item.output).map(() => '[picture]\n\n').join('')}\`\`\`\`\n${textOf(item.output)}\n\`\`\`\``);
    }
    if (turn.output.length > 0) parts.push('## Reply');
    for (const item of turn.output) {
      if (item.type === 'message') parts.push(textOf(item.content));
      if (item.type === 'function_call') parts.push(`Calls \`${item.name}\`:\n\n\`\`\`\`json\n${item.arguments}\n\`\`\`\``);
    }
  }
  return `${parts.join('\n\n')}\n`;
}
