// Text of models as characters that show and do nothing.

function shown(character: string): string {
  const code = character.charCodeAt(0);
  if (code === 0x0d) return '';
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return '\u2421';
  return `<U+${code.toString(16).toUpperCase().padStart(4, '0')}>`;
}

// Control characters (terminal escapes among them) become their pictures; characters that reorder text become their code. Marks that
// scripts need stay: between words of Khmer and Thai, and beside Arabic and Hebrew letters.
export function visibleText(text: string): string {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2061-\u2069\ufeff]/g, shown);
}

// The same for code, where whatever shows nothing is a mistake, or means harm.
export function visibleCode(text: string): string {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, shown);
}

// The address of a link, if its scheme is harmless; else null.
export function safeLink(address: string): string | null {
  let url: URL;
  try {
    url = new URL(address.trim());
  } catch {
    return null;
  }
  return ['http:', 'https:', 'mailto:'].includes(url.protocol) ? url.href : null;
}

// The data: URI of a picture, or null for any other address.
export function pictureData(address: string | null | undefined): string | null {
  return address && /^data:image\/(png|jpeg|gif|bmp|webp);base64,[A-Za-z0-9+/=]*$/.test(address) ? address : null;
}
