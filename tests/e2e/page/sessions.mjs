// What is kept: titles, tags, search, files; two tabs; keys; the keyboard alone; a telephone; a daemon that ends.
import { writeFile } from 'node:fs/promises';

export async function named(scenario, { model }) {
  const tab = await scenario.tab();
  for (const text of ['First: ask1', 'Second: ask2']) {
    await tab.newSession({ model });
    await tab.say(text);
    await tab.finished(1);
  }
  const id = tab.id();
  await tab.openDetails();
  const fill = async (field, text) => {
    await field.fill(text);
    await field.press('Tab');
  };
  await fill(tab.sessionName(), 'Ships & <b>harbours</b>');
  await tab.heading('Ships & <b>harbours</b>').waitFor();
  // What is being typed stays when the list is read again.
  const tags = tab.setting(/^Tags/);
  await tags.fill('sea, work');
  await tab.readsAgain();
  const typed = await tags.inputValue();
  await tags.press('Tab');
  const titles = await tab.until(async () => {
    const all = await tab.titles();
    return all.some((title) => title.startsWith('Ships')) && (await tab.list().innerText()).includes('work') && all;
  }, 'the new title in the list');
  const search = tab.list().getByRole('searchbox');
  const found = {};
  for (const words of ['first', '#work', 'ships sea', 'nothing']) {
    await search.fill(words);
    found[words] = await tab.titles();
  }
  await search.fill('');
  const page = await tab.page.title();
  await tab.page.reload();
  await tab.finished(1);
  const reloaded = await tab.until(async () => (await tab.titles()).find((title) => title.startsWith('Ships')), 'the title after a reload');
  return { id, typed, titles, found, page, reloaded };
}

// The list that the page reads has many sessions, and not the `old` ones.
export async function older(scenario, { old, queries }) {
  const context = await scenario.profile();
  await context.route('**/v1/sessions?*', async (route) => {
    if (new URL(route.request().url()).searchParams.get('q') !== '') return route.continue();
    const { 'if-none-match': _, ...headers } = route.request().headers();
    const answer = await route.fetch({ headers });
    const { data } = await answer.json();
    const many = Array.from({ length: 500 }, (_, i) => ({ ...data[0], name: '', metadata: { title: `Copy ${i}` }, session_id: i.toString(16).padStart(32, '0') }));
    return route.fulfill({ response: answer, json: { object: 'list', data: many, has_more: true, next: old[0] } });
  });
  const tab = await scenario.tabIn(context);
  await tab.rows().first().waitFor();
  const hint = () => tab.list().getByText(/^Older sessions/).innerText();
  const hints = [await hint()];
  const search = tab.list().getByRole('searchbox');
  const found = [];
  for (const query of queries) {
    const answer = tab.page.waitForResponse((each) => /\/v1\/sessions(\/[0-9a-f]{32}$|.*&q=[^&])/.test(each.url()));
    await search.fill(query);
    await (await answer).finished();
    await tab.page.waitForTimeout(100);
    found.push(await tab.titles());
  }
  hints.push(await hint());
  return { found, hints };
}

// A list that was read before a session got its name comes after it.
export async function stale_list(scenario, { model, name }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  await tab.say('First: ask1');
  await tab.finished(1);
  await tab.openDetails();
  const before = await tab.page.evaluate(() => fetch('v1/sessions?order=desc&limit=1000').then((answer) => answer.json()));
  const held = tab.held('**/v1/sessions?*');
  await tab.page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
  const release = await held;
  await tab.sessionName().fill(name);
  await tab.sessionName().press('Tab');
  await tab.heading(name).waitFor();
  await release('fulfill', { json: before });
  await tab.page.waitForTimeout(200);
  return tab.page.getByRole('main').getByRole('heading', { level: 2 }).first().innerText();
}

// Exports a session, imports it, and imports what is no session.
export async function files(scenario, { model, folder }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  await tab.say('First: ask1');
  await tab.finished(1);
  const id = tab.id();
  const before = await tab.texts();
  await tab.openDetails();
  const exported = await tab.saved(() => tab.button('Export').click());
  const markdown = await tab.saved(() => tab.button('Save as Markdown').click());
  const take = async (name, content) => {
    await writeFile(`${folder}/${name}`, content);
    const [chooser] = await Promise.all([tab.page.waitForEvent('filechooser'), tab.list().getByRole('button', { name: 'Import…' }).click()]);
    await chooser.setFiles(`${folder}/${name}`);
  };
  await take('Voyage.umasession', Buffer.from(exported.content, 'base64'));
  await tab.until(async () => tab.id() !== id, 'the imported session');
  await tab.finished(1);
  const imported = tab.id();
  const after = await tab.texts();
  // It has the title in the file, or else the file's name.
  const titles = await tab.until(async () => {
    const all = await tab.titles();
    return (all.includes('Voyage') || all.filter((title) => title === all[0]).length === 2) && all;
  }, 'the title of the imported session');
  await take('none.umasession', 'no session');
  const refused = await tab.alert().innerText();
  return {
    id, imported, before, after, titles, refused, name: exported.name, markdownName: markdown.name,
    markdown: Buffer.from(markdown.content, 'base64').toString(),
  };
}

export async function forked_and_deleted(scenario, { model }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  for (const [i, text] of ['First: ask1', 'Second: ask2', 'Third: ask3'].entries()) {
    await tab.say(text);
    await tab.finished(i + 1);
  }
  const id = tab.id();
  await tab.openDetails();
  await tab.setting('Seed').fill('5');
  await tab.button('Fork').click();
  await tab.until(async () => tab.id() !== id, 'the fork');
  await tab.finished(3);
  const fork = tab.id();
  const seed = await tab.setting('Seed').inputValue();
  const tree = await tab.titles();
  await tab.replies().first().getByRole('button', { name: 'Rewind to here' }).click();
  await tab.dialog('Rewind').getByRole('button', { name: 'Rewind' }).click();
  await tab.until(async () => (await tab.replies().count()) === 1, 'one turn');
  await tab.button('Delete…').click();
  await tab.dialog('Delete').getByRole('button', { name: 'Cancel' }).click();
  const kept = tab.id();
  await tab.button('Delete…').click();
  await tab.dialog('Delete').getByRole('button', { name: 'Delete' }).click();
  await tab.beginning().waitFor();
  return { id, fork, seed, tree, kept, titles: await tab.titles() };
}

// Two tabs on one session: the second shows the reply as it grows, and stops it.
export async function two_tabs(scenario, { model }) {
  const context = await scenario.profile();
  const first = await scenario.tabIn(context);
  await first.newSession({ model });
  await first.say('Tell me a long story.');
  await first.until(async () => (await first.replies().first().innerText()).length > 40, 'a reply');
  const second = await scenario.tabIn(context, `#/talk/${first.id()}`);
  const seen = await second.until(async () => {
    const text = await second.replies().first().innerText().catch(() => '');
    return text.length > 100 && text;
  }, 'the growing reply in the other tab');
  await second.button('Stop').click();
  await first.finished(1);
  await second.finished(1);
  await second.openDetails();
  await second.sessionName().fill('Told twice');
  await second.sessionName().press('Tab');
  await first.heading('Told twice').waitFor();
  const text = async (tab) => (await tab.replies().first().getByRole('paragraph').first().innerText()).slice(0, 500);
  return { id: first.id(), seen, texts: [await text(first), await text(second)], titles: [await first.titles(), await second.titles()] };
}

export async function keys(scenario, { model, wrong, key }) {
  const tab = await scenario.tab();
  const dialog = tab.dialog('API key');
  await dialog.waitFor();
  // Chromium closes a dialog with the second Escape whatever its page says.
  for (let i = 0; i < 3; ++i) await tab.page.keyboard.press('Escape');
  await tab.page.waitForTimeout(100);
  await dialog.waitFor();
  await tab.useKey(wrong);
  const refused = await dialog.getByRole('alert').innerText();
  await tab.useKey(key);
  await dialog.waitFor({ state: 'hidden' });
  await tab.newSession({ model });
  await tab.say('First: ask1');
  const reply = await (await tab.finished(1)).innerText();
  for (const view of ['See', 'Manage', 'Talk']) await tab.link(view).click();
  const kept = (await tab.storage()) + tab.page.url();
  await tab.page.reload();
  await dialog.waitFor();
  // It stays if its user wants that, until it is forgotten.
  await dialog.getByLabel('Keep it until this tab is closed').check();
  await tab.useKey(key);
  await dialog.waitFor({ state: 'hidden' });
  await tab.page.reload();
  await tab.button('Forget the key').waitFor();
  await tab.rows().first().waitFor();
  await tab.button('Forget the key').click();
  await dialog.waitFor();
  return { refused, reply, kept, left: await tab.storage() };
}

// Without a mouse: a session, a reply that is stopped, the search, the list.
export async function keyboard(scenario, { model, slow }) {
  const tab = await scenario.tab();
  const { keyboard } = tab.page;
  const focused = () => tab.page.evaluate(() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.innerText.split('\n')[0]);
  const pressUntil = async (key, name) => {
    for (let i = 0; i < 60; ++i) {
      await keyboard.press(key);
      if ((await focused())?.includes(name)) return;
    }
    throw new Error(`${key} did not reach ${name}`);
  };
  await tab.until(async () => (await tab.model().locator('option').count()) > 2, 'models');
  await pressUntil('Shift+Tab', 'Skip');
  const skip = await focused();
  await keyboard.press('Enter');
  const skipped = await focused();
  const choose = async (name) => {
    await tab.model().focus();
    await keyboard.type(name);
    await tab.until(async () => (await tab.model().inputValue()) === name, `the model ${name}`);
    await pressUntil('Tab', 'Message');
  };
  await choose(model);
  await keyboard.type('Anchor:');
  await keyboard.press('Shift+Enter');
  await keyboard.type('ask1');
  await keyboard.press('Enter');
  await tab.finished(1);
  const first = await tab.texts();
  await keyboard.press('Alt+n');
  await tab.beginning().waitFor();
  await choose(slow);
  await keyboard.type('Second story');
  await keyboard.press('Enter');
  await tab.until(async () => (await tab.replies().first().innerText().catch(() => '')).length > 40, 'a reply');
  await keyboard.press('Escape');
  await tab.finished(1);
  await tab.page.evaluate(() => document.activeElement.blur());
  await keyboard.press('/');
  const search = await focused();
  await keyboard.type('anchor');
  await tab.until(async () => (await tab.rows().count()) === 1, 'one session found');
  await keyboard.press('ArrowDown');
  const row = await focused();
  await keyboard.press('Enter');
  await tab.questions().getByText('ask1').waitFor();
  await keyboard.press('Control+k');
  await tab.until(async () => (await focused()) === search, 'the search again');
  return { skip, skipped, first, search, row };
}

const phone = { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 };

// On a telephone nothing is wider than the screen, and everything can be reached.
export async function telephone(scenario, { model, session }) {
  const tab = await scenario.tab('', phone);
  const wide = [];
  const check = async (place) => {
    const { scroll, inner } = await tab.page.evaluate(() => ({ scroll: document.scrollingElement.scrollWidth, inner: window.innerWidth }));
    if (scroll > inner) wide.push(`${place}: ${scroll} > ${inner}`);
  };
  await tab.beginning().waitFor();
  await check('new');
  await tab.button('Sessions').tap();
  await tab.list().waitFor();
  await check('list');
  await tab.rows().getByRole('link', { name: session }).tap();
  await tab.list().waitFor({ state: 'hidden' });
  await tab.finished(1);
  await check('conversation');
  await tab.message().tap();
  await tab.message().fill('Now: ask4');
  await tab.button('Send').tap();
  await tab.replies().getByText('This is reply 4.').waitFor();
  await tab.button('Details').tap();
  await tab.details().waitFor();
  await tab.details().getByRole('button', { name: 'Delete…' }).scrollIntoViewIfNeeded();
  await check('details');
  await tab.details().getByRole('button', { name: 'Close' }).first().tap();
  await tab.details().waitFor({ state: 'hidden' });
  await tab.link('See').tap();
  await tab.region('Models in memory').waitFor();
  await check('see');
  for (const part of ['Models', 'Keys', 'Sessions', 'Configuration']) {
    await tab.link('Manage').tap();
    await tab.page.getByRole('navigation', { name: 'Parts' }).getByRole('link', { name: part }).tap();
    await tab.page.getByRole('heading', { name: part, exact: true, level: 1 }).waitFor();
    await check(`manage ${part}`);
  }
  await tab.link('Talk').tap();
  await tab.beginning().waitFor();
  return { model, wide };
}

// A message that is not kept stands in the field again, before what was typed meanwhile.
export async function append_fails(scenario, { model, first, lost, draft }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  await tab.say(first);
  await tab.finished(1);
  const held = tab.held('**/items', 'POST');
  await tab.say(lost);
  const release = await held;
  await tab.message().fill(draft);
  await release('abort');
  const told = await tab.alert().filter({ hasText: 'Close' }).innerText();
  const message = await tab.until(async () => {
    const text = await tab.message().inputValue();
    return text !== draft && text;
  }, 'the message is back in the field');
  await tab.message().press('Enter');
  await tab.finished(2);
  return { id: tab.id(), told, message };
}

// Two messages wait. Taking them back fails after the first deletion, then succeeds.
export async function taken_back(scenario, { session }) {
  const tab = await scenario.tab(`#/talk/${session}`);
  await tab.button('Take back').waitFor();
  const asked = async () => (await tab.questions().locator('.said').allInnerTexts()).map((text) => text.trim());
  let deletions = 0;
  await tab.page.route('**/items/*', (route) => (++deletions === 2 ? route.abort() : route.continue()));
  await tab.button('Take back').click();
  await tab.alert().filter({ hasText: 'Close' }).waitFor();
  const partly = [await tab.message().inputValue(), await tab.until(async () => (await asked()).length === 1 && asked(), 'one message')];
  await tab.button('Take back').click();
  await tab.questions().first().waitFor({ state: 'hidden' });
  return { partly, whole: await tab.message().inputValue() };
}

// A long session is shown page by page, whatever is pressed twice.
export async function long(scenario, { session, last }) {
  const tab = await scenario.tab(`#/talk/${session}`);
  const asked = async () => (await tab.questions().locator('.said').allInnerTexts()).map((text) => text.trim());
  await tab.until(async () => (await asked()).at(-1) === last, 'the last message');
  const first = await asked();
  await tab.button('Show earlier turns').evaluate((button) => {
    button.click();
    button.click();
  });
  await tab.button('Show earlier turns').waitFor({ state: 'hidden' });
  const all = await asked();
  await tab.readsAgain();
  await tab.say('Again: ask2');
  await tab.until(async () => (await tab.replies().count()) === all.length + 1, 'one more turn');
  await tab.finished(all.length + 1);
  return { first, all, after: await asked() };
}

// A reply that another program has begun cannot be read at first.
export async function attach_fails(scenario, { session }) {
  const tab = await scenario.tab(`#/talk/${session}`);
  await tab.message().waitFor();
  const held = tab.held('**/v1/responses/*');
  await scenario.ask('begin');
  await tab.page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
  await (await held)('abort');
  await tab.until(async () => (await tab.replies().first().innerText().catch(() => '')).length > 60, 'the reply');
  await tab.button('Stop').click();
  const reply = await tab.finished(1);
  await reply.getByText('The reply was stopped.').waitFor();
  return { problems: await tab.alert().allInnerTexts() };
}

// The daemon is killed while one tab writes a reply and another one reads it.
export async function attached_restart(scenario, { model }) {
  const context = await scenario.profile();
  const first = await scenario.tabIn(context);
  await first.newSession({ model });
  await first.say('Tell me a long story.');
  await first.until(async () => (await first.replies().first().innerText().catch(() => '')).length > 40, 'a reply');
  const second = await scenario.tabIn(context, `#/talk/${first.id()}`);
  await second.until(async () => (await second.replies().first().innerText().catch(() => '')).length > 60, 'the reply in the other tab');
  await scenario.ask('kill');
  await second.alert().filter({ hasText: 'does not answer' }).first().waitFor();
  await scenario.ask('start');
  const told = [];
  const lost = [];
  for (const tab of [first, second]) {
    await tab.page.bringToFront();
    await tab.button('Stop').waitFor({ state: 'hidden' });
    await tab.button('Answer').waitFor();
    told.push((await tab.alert().allInnerTexts()).join());
    lost.push(await tab.page.getByRole('article', { name: 'Lost reply' }).innerText());
  }
  return { id: first.id(), told, lost, asked: (await second.texts()).asked };
}

// The daemon ends in the middle of a reply: killed, or by its own will.
export async function restarted(scenario, { model }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  await tab.openDetails();
  await tab.setting('Longest reply, tokens').fill('8');
  await tab.say('First message');
  await tab.finished(1);
  const before = await tab.texts();
  await tab.setting('Longest reply, tokens').fill('');
  const restarts = [];
  for (const how of ['kill', 'terminate']) {
    await tab.say(`Tell me a long story (${how}).`);
    await tab.until(async () => (await tab.replies().nth(1).innerText().catch(() => '')).length > 40, 'a reply');
    await scenario.ask(how);
    const alerts = await tab.until(async () => {
      const texts = await tab.alert().allInnerTexts();
      return texts.some((text) => text.includes('does not answer')) && texts;
    }, 'that umad is gone');
    await scenario.ask('start');
    await tab.alert().filter({ hasText: 'Trying again' }).waitFor({ state: 'hidden' });
    await tab.until(async () => (await tab.button('Stop').count()) === 0, 'the end of the reply');
    await tab.questions().getByText('First message', { exact: true }).waitFor();
    restarts.push({ how, alerts, texts: await tab.texts(), message: await tab.message().inputValue(), replies: await tab.replies().count() });
    if (how === 'kill') await tab.message().fill('');
  }
  await tab.setting('Longest reply, tokens').fill('8');
  const count = await tab.replies().count();
  await tab.say('Last message');
  await tab.finished(count + 1);
  return { id: tab.id(), before, restarts, after: await tab.texts() };
}
