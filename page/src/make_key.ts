// Makes an API key in the browser, as `umad key new NAME` does: the key, and its line for the file of http.keys_file.
import type { KeyInfo } from './types.ts';

const hex = (bytes: Uint8Array) => [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');

export async function makeKey(options: Partial<KeyInfo> & { name: string }): Promise<{ key: string; line: string }> {
  if (!/^[A-Za-z0-9._:@-]{1,64}$/.test(options.name)) throw new Error('A name has 1 to 64 letters, digits and ._-:@');
  if (!globalThis.crypto?.subtle) throw new Error('This browser makes keys on pages of https and of this machine only.');
  const key = `uma-${hex(crypto.getRandomValues(new Uint8Array(32)))}`;
  const digest = hex(new Uint8Array(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(key))));
  const { name, ...limits } = options;
  const words = Object.entries(limits).filter(([, value]) => value !== undefined).map(([option, value]) => ` ${option}=${value}`);
  return { key, line: `${name} sha256:${digest}${words.join('')}` };
}
