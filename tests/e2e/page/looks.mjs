// What is true of every view: it can be used with a screen reader, its first load is small, nothing jumps.
import { readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { Tab } from './tab.mjs';

const axePath = createRequire(import.meta.url).resolve('axe-core/axe.min.js');
const phone = { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true };

// The findings of axe-core that are serious or critical, as texts.
async function findings(tab) {
  const { violations } = await tab.page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  return violations.filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.slice(0, 3).map(({ html, any }) => `${html.slice(0, 150)} ${any[0]?.message ?? ''}`).join(' | ')}`);
}

// Goes through all views. `visit` is called in each.
async function tour(tab, { session, draws }, isPhone, visit) {
  await tab.beginning().waitFor();
  await tab.until(async () => (await tab.model().locator('option').count()) > 2, 'models');
  await visit('new');
  await tab.model().selectOption(draws);
  await tab.page.getByText('Options', { exact: true }).click();
  await visit('draw');
  if (isPhone) {
    await tab.button('Sessions').click();
    await tab.list().waitFor();
    await visit('list');
  }
  await tab.page.evaluate((to) => (location.hash = to), `#/talk/${session}`);
  await tab.replies().first().waitFor();
  for (const summary of await tab.page.getByRole('log').getByText(/^(Reasoning|System prompt)$/).all()) await summary.click();
  await tab.questions().first().getByRole('button', { name: 'Edit' }).click();
  await visit('conversation');
  await tab.openDetails();
  await visit('details');
  await tab.button('Delete…').click();
  await visit('dialog');
  await tab.dialog('Delete').getByRole('button', { name: 'Cancel' }).click();
  if (isPhone) await tab.details().getByRole('button', { name: 'Close' }).first().click();
  await tab.link('See').click();
  await tab.region('Models in memory').waitFor();
  await visit('see');
  for (const part of ['Models', 'Keys', 'Sessions', 'Configuration']) {
    await tab.page.evaluate((to) => (location.hash = to), `#/manage/${part.toLowerCase()}`);
    await tab.page.getByRole('heading', { name: part, exact: true, level: 1 }).waitFor();
    await tab.page.getByRole('main').locator('table, form, p').first().waitFor();
    if (part === 'Models') await tab.button('Card').first().click();
    await visit(`manage ${part}`);
  }
}

export async function accessible(scenario, options) {
  const axe = await readFile(axePath, 'utf8');
  const found = {};
  const visited = [];
  for (const [size, profile] of [['desktop', {}], ['telephone', phone]]) {
    for (const colorScheme of ['light', 'dark']) {
      const tab = await scenario.tab('', { ...profile, colorScheme, reducedMotion: 'reduce' });
      await tab.page.evaluate(axe);
      await tour(tab, options, size === 'telephone', async (view) => {
        visited.push(view);
        const texts = await findings(tab);
        if (texts.length > 0) found[`${size} ${colorScheme} ${view}`] = texts;
      });
      await tab.page.close();
    }
  }
  return { found, visited: visited.length };
}

// The requests of the first load. `first`: those that began before the lists of models and sessions were here, from when on the page
// can be used; `bytes`: what was transferred until the page asked for nothing more.
export async function first_load(scenario) {
  const context = await scenario.profile();
  const tab = new Tab(scenario, await context.newPage());
  const network = await context.newCDPSession(tab.page);
  let bytes = 0;
  await network.send('Network.enable');
  network.on('Network.loadingFinished', ({ encodedDataLength }) => (bytes += encodedDataLength));
  await tab.page.goto(scenario.url);
  await tab.until(async () => (await tab.model().locator('option').count()) > 0, 'models to choose from');
  await tab.page.waitForLoadState('networkidle');
  const entries = await tab.page.evaluate(() => performance.getEntriesByType('resource').map(({ name, startTime, responseEnd, encodedBodySize, decodedBodySize }) =>
    ({ path: new URL(name).pathname, startTime, responseEnd, encodedBodySize, decodedBodySize })));
  const endOf = (path) => entries.find((each) => each.path === path).responseEnd;
  const usable = Math.max(endOf('/v1/models'), endOf('/v1/sessions'));
  return {
    bytes,
    first: ['/', ...entries.filter(({ startTime }) => startTime < usable).map(({ path }) => path)],
    files: entries.filter(({ path }) => /\.(js|css)$/.test(path)).map(({ path, encodedBodySize, decodedBodySize }) => [path, encodedBodySize, decodedBodySize]),
  };
}

// How far things jump by themselves in each view, and while a reply is written.
export async function shifts(scenario, options) {
  const tab = await scenario.tab();
  const found = {};
  let before = 0;
  const visit = async (view) => {
    const shift = await tab.shift();
    found[view] = shift - before;
    before = shift;
  };
  await tour(tab, options, false, visit);
  await tab.link('Talk').click();
  await tab.newSession({ model: options.model });
  await tab.say(options.question);
  await tab.finished(1);
  await visit('reply');
  return { found };
}
