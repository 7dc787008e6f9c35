// A tab with the page, in the words of a user. Elements are found by their roles and names.

import { readFile } from 'node:fs/promises';

// Runs in each tab before the page: what the browser tells about it.
function observe() {
  addEventListener('securitypolicyviolation', (event) => console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
  window.seen = { shift: 0 };
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.seen.shift += entry.value;
  }).observe({ type: 'layout-shift', buffered: true });
}

export class Scenario {
  constructor(browser, { scenario, url, options, expects = [], failures }, waitMs, ask) {
    Object.assign(this, { browser, name: scenario, url, options, failures, waitMs, ask });
    this.expects = expects.map((pattern) => new RegExp(pattern));
    this.faults = [];
    this.contexts = [];
  }

  // A new browser profile. `watched`: what goes wrong in it counts.
  async profile(options = {}, watched = true) {
    const context = await this.browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
    this.contexts.push(context);
    context.setDefaultTimeout(this.waitMs);
    if (!watched) return context;
    await context.addInitScript(observe);
    context.on('console', (message) => {
      if (message.type() === 'error' || message.type() === 'warning') this.note(`console: ${message.text()} (${message.location().url})`);
    });
    context.on('weberror', (event) => this.note(`error: ${event.error().stack}`));
    context.on('dialog', (dialog) => {
      this.note(`dialog: ${dialog.type()} ${dialog.message()}`);
      void dialog.accept().catch(() => {});
    });
    const origin = new URL(this.url).origin;
    context.on('request', (request) => {
      const { protocol, origin: other } = new URL(request.url());
      if (protocol !== 'data:' && protocol !== 'blob:' && other !== origin) this.note(`request: ${request.method()} ${request.url()}`);
    });
    return context;
  }

  note(fault) {
    if (!this.expects.some((pattern) => pattern.test(fault)) && this.faults.length < 50) this.faults.push(fault);
  }

  async tab(place = '', options = {}) {
    return this.tabIn(await this.profile(options), place);
  }

  async tabIn(context, place = '') {
    const tab = new Tab(this, await context.newPage());
    await tab.page.goto(this.url + place);
    return tab;
  }

  // Waits until `condition` returns something and returns it.
  async until(condition, what) {
    const end = Date.now() + this.waitMs;
    for (;;) {
      const value = await condition();
      if (value) return value;
      if (Date.now() > end) throw new Error(`did not happen within ${this.waitMs} ms: ${what}`);
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }

  // What the tabs show, for the message of a failure; a picture of each is stored.
  async describe() {
    const parts = [];
    for (const page of this.contexts.flatMap((context) => context.pages())) {
      const picture = `${this.failures}/${this.name}-${parts.length}.png`;
      await page.screenshot({ path: picture, timeout: 10_000 }).catch(() => {});
      const tree = await page.locator('body').ariaSnapshot({ timeout: 10_000 }).catch((error) => error.message);
      parts.push(`${page.url()} (${picture}):\n${tree.slice(0, 4000)}`);
    }
    return parts.join('\n');
  }

  async close() {
    for (const context of this.contexts) await context.close();
  }
}

export class Tab {
  constructor(scenario, page) {
    Object.assign(this, { scenario, page });
  }

  button = (name) => this.page.getByRole('button', { name, exact: typeof name === 'string' });
  link = (name) => this.page.getByRole('link', { name, exact: typeof name === 'string' });
  field = (name) => this.page.getByLabel(name, { exact: typeof name === 'string' });
  model = () => this.page.getByRole('combobox', { name: 'Model', exact: true });
  beginning = () => this.page.getByRole('heading', { name: /^(New session|Begin a conversation|Draw a picture)$/, level: 1 });
  heading = (name) => this.page.getByRole('heading', { name, exact: true });
  region = (name) => this.page.getByRole('region', { name, exact: true });
  alert = () => this.page.getByRole('alert');
  dialog = (name) => this.page.getByRole('dialog', { name, exact: true });
  until = (condition, what) => this.scenario.until(condition, what);

  message = () => this.page.getByRole('textbox', { name: 'Message', exact: true }).last();
  replies = () => this.page.getByRole('article', { name: 'Reply', exact: true });
  questions = () => this.page.getByRole('article', { name: 'You', exact: true });
  list = () => this.page.getByRole('navigation', { name: 'Sessions' });
  rows = () => this.list().getByRole('listitem');
  details = () => this.page.getByRole('complementary', { name: 'Details' });
  setting = (name) => this.details().getByRole('textbox', { name }).or(this.details().getByRole('spinbutton', { name }));
  sessionName = () => this.setting(/^(Title|Name)$/);
  about = () => this.page.locator('#message-help');  // The line below the message.

  async useKey(key) {
    const dialog = this.dialog('API key');
    await dialog.getByLabel('Key').fill(key);
    await dialog.getByRole('button', { name: 'Use' }).click();
  }

  async newSession({ model, system } = {}) {
    await this.link('New session').click();
    await this.beginning().waitFor();
    if (model) await this.model().selectOption(model);
    if (system === undefined) return;
    const field = this.field('System prompt');
    if (!(await field.isVisible())) await this.button('Options').click();
    await field.fill(system);
  }

  async say(text) {
    await this.message().fill(text);
    await this.message().press('Enter');
  }

  // Waits until the reply with this number is written, and returns it.
  async finished(number) {
    const reply = this.replies().nth(number - 1);
    await reply.waitFor();
    await this.button('Stop').waitFor({ state: 'hidden' });
    return reply;
  }

  // The sentences of its receipt.
  async receipt(reply) {
    const receipt = reply.locator('details.receipt');
    if (!(await receipt.evaluate((element) => element.open))) await receipt.locator('summary').click();
    return receipt.locator('p').innerText();
  }

  async openDetails() {
    const button = this.button('Details');
    if ((await button.getAttribute('aria-expanded')) !== 'true') await button.click();
    await this.details().waitFor();
  }

  // Waits until the list of sessions was read once more, as every ten seconds, and is shown.
  async readsAgain() {
    const read = this.page.waitForResponse((answer) => answer.url().includes('/sessions?'));
    await this.page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
    const answer = await read;
    if (answer.status() !== 304) await answer.finished();  // Playwright tells no end of an answer without a body.
    await this.page.waitForTimeout(100);
  }

  // Holds the next request to `pattern`. Returns a promise of the function that lets it go on, by what `route` offers.
  held(pattern, method) {
    return new Promise((resolve) => {
      let isTaken = false;
      void this.page.route(pattern, (route) => {
        if (isTaken || (method && route.request().method() !== method)) return route.fallback();
        isTaken = true;
        return resolve((how, options) => route[how](options));
      });
    });
  }

  // The id of the open session.
  id = () => /^#\/talk\/([0-9a-f]{32})$/.exec(new URL(this.page.url()).hash)?.[1] ?? '';
  // Titles in the list; those of forks begin with "Fork: ".
  titles = () => this.rows().getByRole('link').evaluateAll((all) => all.map((link) => link.firstElementChild.textContent.replace(/^↳ /, 'Fork: ')));
  texts = async () => ({ asked: await this.questions().allInnerTexts(), replied: await this.replies().allInnerTexts() });
  shift = () => this.page.evaluate(() => window.seen.shift);

  // What the browser keeps of the page.
  storage = () => this.page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie]));

  // Holds a picture over `place`, or pastes it, as the system does.
  async give(place, kind, name, base64) {
    await place.evaluate((element, { kind, name, base64 }) => {
      const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
      const data = new DataTransfer();
      data.items.add(new File([bytes], name, { type: 'image/png' }));
      const init = { bubbles: true, cancelable: true };
      element.dispatchEvent(kind === 'paste' ? new ClipboardEvent('paste', { ...init, clipboardData: data }) : new DragEvent('drop', { ...init, dataTransfer: data }));
    }, { kind, name, base64 });
  }

  // The name and the content, as base64, of a file that the page saves after `act`.
  async saved(act) {
    const [download] = await Promise.all([this.page.waitForEvent('download'), act()]);
    return { name: download.suggestedFilename(), content: await readFile(await download.path(), 'base64') };
  }
}
