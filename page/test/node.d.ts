// The parts of node that the tests use.
declare module 'node:test' {
  export function test(name: string, work: () => void | Promise<void>): void;
  export function test(name: string, options: { timeout: number }, work: () => void | Promise<void>): void;
}
declare module 'node:assert/strict' {
  interface Assert {
    ok(value: unknown, message?: string): asserts value;
    equal(actual: unknown, expected: unknown, message?: string): void;
    deepEqual(actual: unknown, expected: unknown, message?: string): void;
    match(actual: string, expected: RegExp): void;
    throws(work: () => void, expected: RegExp): void;
    rejects(work: Promise<unknown>, expected: RegExp): Promise<void>;
  }
  const assert: Assert;
  export default assert;
}
declare module 'node:crypto' {
  export function createHash(name: string): { update(text: string): { digest(form: 'hex'): string } };
}
