// Text of models as characters that show and do nothing.

// Control characters (terminal escapes among them) become their pictures; characters that change the direction of text, or
// show nothing, become their code.
export function visibleText(text: string): string {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g, (character) => {
    const code = character.charCodeAt(0);
    if (code === 0x0d) return '';
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    if (code === 0x7f) return '\u2421';
    return `<U+${code.toString(16).toUpperCase().padStart(4, '0')}>`;
  });
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
