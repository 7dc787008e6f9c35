// The text format of Prometheus, as far as /metrics uses it.

export type Labels = Record<string, string>;

export interface Sample {
  labels: Labels;
  value: number;
}

export class Metrics {
  private readonly samples = new Map<string, Sample[]>();

  constructor(text: string) {
    for (const line of text.split('\n')) {
      const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)$/.exec(line);
      if (!found) continue;
      const labels: Labels = {};
      for (const label of (found[2] ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
        labels[label[1]!] = label[2]!.replace(/\\(.)/g, (_, character) => (character === 'n' ? '\n' : character));
      }
      const sample = { labels, value: Number(found[3]) };
      const others = this.samples.get(found[1]!);
      if (others) others.push(sample);
      else this.samples.set(found[1]!, [sample]);
    }
  }

  // The value of a metric without labels, or with these; null: it is not there.
  value(name: string, labels: Labels = {}): number | null {
    const wanted = Object.entries(labels);
    const found = this.samples.get(name)?.find((sample) => wanted.every(([key, value]) => sample.labels[key] === value));
    return found && Number.isFinite(found.value) ? found.value : null;
  }

  labelled(name: string): Sample[] {
    return this.samples.get(name) ?? [];
  }
}
