// Builds the page, or its unit tests. Usage: node build.mjs [--test] [--out FOLDER]; without --out into dist/ or .build/test/.
// umad reads the folder (src/server/http/handlers/page_files.h): each file has a compressed one beside it.
import { build } from 'esbuild';
import { cp, mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { parseArgs } from 'node:util';
import { gzipSync } from 'node:zlib';

const { values: options } = parseArgs({ options: { test: { type: 'boolean' }, out: { type: 'string' } } });
const out = options.out ?? (options.test ? '.build/test' : 'dist');

const common = {
  bundle: true,
  format: 'esm',
  target: 'es2022',
  jsx: 'automatic',
  jsxImportSource: 'preact',
  charset: 'utf8',
  logLevel: 'warning',
};

async function buildTests() {
  await rm(out, { recursive: true, force: true });
  const files = (await readdir('test')).filter((name) => name.endsWith('.test.ts')).map((name) => `test/${name}`);
  await build({ ...common, entryPoints: files, outdir: out, platform: 'node', outExtension: { '.js': '.mjs' } });
}

// The licences of the libraries that are in the bundle ask for their text in each copy.
async function writeLicences(metafile) {
  const names = new Set();
  for (const path of Object.keys(metafile.inputs)) {
    const found = /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path);
    if (found) names.add(found[1]);
  }
  const texts = [];
  for (const name of [...names].sort()) {
    const folder = `node_modules/${name}`;
    const file = (await readdir(folder)).find((each) => /^licen[cs]e/i.test(each));
    if (!file) throw new Error(`${name} has no licence file`);
    const { version } = JSON.parse(await readFile(`${folder}/package.json`, 'utf8'));
    texts.push(`${name} ${version}\n\n${(await readFile(`${folder}/${file}`, 'utf8')).trim()}\n`);
  }
  await writeFile(`${out}/licences.txt`, texts.join('\n----\n\n'));
}

async function compressAll() {
  for (const entry of await readdir(out, { recursive: true, withFileTypes: true })) {
    const path = `${entry.parentPath}/${entry.name}`;
    if (entry.isFile()) await writeFile(`${path}.gz`, gzipSync(await readFile(path), { level: 9 }));
  }
}

async function buildPage() {
  await rm(out, { recursive: true, force: true });
  const { metafile } = await build({
    ...common,
    entryPoints: { page: 'src/main.tsx' },
    outdir: out,
    chunkNames: 'chunks/[name]-[hash]',
    splitting: true,
    minify: true,
    metafile: true,
    legalComments: 'none',
    define: { 'process.env.NODE_ENV': '"production"' },
  });
  await build({ entryPoints: ['src/page.css'], bundle: true, outfile: `${out}/page.css`, minify: true, logLevel: 'warning' });
  await cp('src/index.html', `${out}/index.html`);
  await writeLicences(metafile);
  await compressAll();
  if (options.out) return;
  await mkdir('.build', { recursive: true });
  await writeFile('.build/meta.json', JSON.stringify(metafile));
}

await (options.test ? buildTests() : buildPage());
