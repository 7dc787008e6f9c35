// Numbers of the last hour at a bounded size: a ring of samples, each of which covers a fixed time.

export class History<Name extends string> {
  private readonly values: Float64Array;
  private readonly times: Float64Array;
  private next = 0;
  private size = 0;

  // Keeps `capacity` samples of `stepMs` each.
  constructor(readonly names: readonly Name[], readonly stepMs = 2000, readonly capacity = 1800,
              private readonly maxima: ReadonlySet<Name> = new Set()) {
    this.values = new Float64Array(names.length * capacity);
    this.times = new Float64Array(capacity);
  }

  get length() {
    return this.size;
  }

  clear() {
    this.next = 0;
    this.size = 0;
  }

  // Adds numbers; missing ones are unknown (NaN). Within the step of the last sample they replace its numbers, but those of
  // `maxima` only if they are larger. A sample older than the last one is ignored.
  add(timeMs: number, sample: Partial<Record<Name, number | null>>) {
    const time = Math.floor(timeMs / this.stepMs) * this.stepMs;
    const last = (this.next + this.capacity - 1) % this.capacity;
    const merges = this.size > 0 && this.times[last] === time;
    if (this.size > 0 && time < this.times[last]!) return;
    const at = merges ? last : this.next;
    this.names.forEach((name, i) => {
      const place = at * this.names.length + i;
      const value = sample[name] ?? NaN;
      if (!merges) this.values[place] = value;
      else if (!Number.isNaN(value) && !(this.maxima.has(name) && this.values[place]! > value)) this.values[place] = value;
    });
    if (merges) return;
    this.times[at] = time;
    this.next = (this.next + 1) % this.capacity;
    this.size = Math.min(this.size + 1, this.capacity);
  }

  // The samples of one number, the oldest first, as [time, value]; unknown values are NaN.
  series(name: Name): [number, number][] {
    const column = this.names.indexOf(name);
    const result: [number, number][] = [];
    for (let i = 0; i < this.size; ++i) {
      const at = (this.next - this.size + i + this.capacity) % this.capacity;
      result.push([this.times[at]!, this.values[at * this.names.length + column]!]);
    }
    return result;
  }

  latest(name: Name): number | null {
    if (this.size === 0) return null;
    const at = (this.next + this.capacity - 1) % this.capacity;
    const value = this.values[at * this.names.length + this.names.indexOf(name)]!;
    return Number.isNaN(value) ? null : value;
  }
}
