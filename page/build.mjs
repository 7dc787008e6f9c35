// Builds the page into dist/, or with --test the unit tests into .build/test/.
import { build } from 'esbuild';
import { cp, mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';

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
  await rm('.build/test', { recursive: true, force: true });
  const files = (await readdir('test')).filter((name) => name.endsWith('.test.ts')).map((name) => `test/${name}`);
  await build({ ...common, entryPoints: files, outdir: '.build/test', platform: 'node', outExtension: { '.js': '.mjs' } });
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
  await writeFile('dist/licences.txt', texts.join('\n----\n\n'));
}

async function buildPage() {
  await rm('dist', { recursive: true, force: true });
  const { metafile } = await build({
    ...common,
    entryPoints: { page: 'src/main.tsx' },
    outdir: 'dist',
    chunkNames: 'chunks/[name]-[hash]',
    splitting: true,
    minify: true,
    metafile: true,
    legalComments: 'none',
    define: { 'process.env.NODE_ENV': '"production"' },
  });
  await build({ entryPoints: ['src/page.css'], outfile: 'dist/page.css', minify: true, logLevel: 'warning' });
  await cp('src/index.html', 'dist/index.html');
  await writeLicences(metafile);
  await mkdir('.build', { recursive: true });
  await writeFile('.build/meta.json', JSON.stringify(metafile));
}

await (process.argv.includes('--test') ? buildTests() : buildPage());
