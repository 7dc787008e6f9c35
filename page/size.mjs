// Prints the compressed sizes of dist/ and fails if the first load is too large: index.html, page.css, page.js and what
// page.js imports before it runs.
import { readFile } from 'node:fs/promises';
import { brotliCompressSync, gzipSync } from 'node:zlib';

const kFirstLoadBytesMax = 100 * 1024;

const { outputs } = JSON.parse(await readFile('.build/meta.json', 'utf8'));
const first = new Set(['dist/page.js']);
for (const path of first) {
  for (const { path: imported, kind } of outputs[path].imports) if (kind === 'import-statement') first.add(imported);
}
const later = Object.keys(outputs).filter((path) => !first.has(path));

async function sizes(paths) {
  const total = { gzip: 0, brotli: 0 };
  for (const path of paths) {
    const bytes = await readFile(path);
    const gzip = gzipSync(bytes, { level: 9 }).length;
    const brotli = brotliCompressSync(bytes).length;
    total.gzip += gzip;
    total.brotli += brotli;
    console.log(`${path.padEnd(36)} ${String(bytes.length).padStart(8)} ${String(gzip).padStart(8)} ${String(brotli).padStart(8)}`);
  }
  console.log(`${'together'.padEnd(45)} ${String(total.gzip).padStart(8)} ${String(total.brotli).padStart(8)}\n`);
  return total;
}

console.log(`${'First load'.padEnd(36)} ${'bytes'.padStart(8)} ${'gzip'.padStart(8)} ${'brotli'.padStart(8)}`);
const total = await sizes(['dist/index.html', 'dist/page.css', ...first]);
console.log('Loaded when needed');
await sizes(later);
if (total.gzip > kFirstLoadBytesMax) {
  console.error(`The first load is ${total.gzip} bytes with gzip: the limit is ${kFirstLoadBytesMax}.`);
  process.exit(1);
}
