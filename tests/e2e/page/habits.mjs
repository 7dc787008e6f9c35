// What people expect of every chat: scrolling, other scripts, copying, printing, a message that shows at once.

const place = (tab) => tab.page.getByRole('log', { name: 'Conversation' }).evaluate((box) => ({
  top: box.scrollTop, fromEnd: box.scrollHeight - box.scrollTop - box.clientHeight, height: box.scrollHeight,
}));

// While a reply grows, the page follows it, until somebody scrolls up a little, and again from the end on.
export async function scrolled_away(scenario, { model }) {
  const tab = await scenario.tab('', { viewport: { width: 900, height: 420 } });
  await tab.newSession({ model });
  await tab.say('Tell me a long story.');
  const grows = (from) => tab.until(async () => (await place(tab)).height > from + 60, 'a reply that grows');
  await tab.until(async () => (await place(tab)).top > 0, 'a reply that fills the view');
  await grows((await place(tab)).height);
  const followed = (await place(tab)).fromEnd;
  await tab.page.mouse.move(450, 200);
  await tab.page.mouse.wheel(0, -60);
  await tab.until(async () => (await place(tab)).fromEnd > 30, 'the wheel to count');
  const left = await place(tab);
  await grows(left.height);
  const later = await place(tab);
  await tab.until(async () => await tab.button('To the end').isVisible(), 'the way to the end');
  await tab.button('To the end').click();
  await grows(later.height);
  const again = (await place(tab)).fromEnd;
  await tab.button('Stop').click();
  await tab.finished(1);
  return { followed, moved: later.top - left.top, again };
}

// Earlier turns come above what is being read.
export async function earlier(scenario, { session }) {
  const tab = await scenario.tab(`#/talk/${session}`);
  await tab.button('Show earlier turns').waitFor();
  await tab.page.getByRole('log', { name: 'Conversation' }).evaluate((box) => (box.scrollTop = 0));
  const first = tab.questions().first();
  const text = await first.locator('.said').innerText();
  const same = tab.page.locator('.said').getByText(text, { exact: true });
  const before = (await same.boundingBox()).y;
  const count = await tab.questions().count();
  await tab.button('Show earlier turns').click();
  await tab.until(async () => (await tab.questions().count()) > count, 'earlier turns');
  await tab.page.waitForTimeout(100);
  return { before, after: (await same.boundingBox()).y, more: (await tab.questions().count()) - count };
}

export async function scripts(scenario, { model, texts }) {
  const tab = await scenario.tab();
  const seen = [];
  for (const text of texts) {
    await tab.newSession({ model });
    await tab.message().fill(text);
    const typed = await tab.message().evaluate((field) => getComputedStyle(field).direction);
    await tab.message().press('Enter');
    await tab.finished(1);
    const said = tab.questions().first().locator('.said');
    seen.push({ typed, said: await said.evaluate((element) => getComputedStyle(element).direction), text: await said.innerText() });
  }
  return seen;
}

// The parts of a reply, each with its direction.
export async function formatted_scripts(scenario, { model, text }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  await tab.say(text);
  const reply = await tab.finished(1);
  const direction = (locator) => locator.first().evaluate((element) => getComputedStyle(element).direction);
  return {
    paragraph: await direction(reply.locator('.markdown p')), item: await direction(reply.getByRole('listitem')),
    cell: await direction(reply.getByRole('cell')), code: await direction(reply.locator('pre code')),
  };
}

// The list of sessions is still being read when the message stands there.
export async function first_message(scenario, { model, text }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  const held = tab.held('**/v1/sessions?*');
  await tab.say(text);
  await tab.questions().getByText(text, { exact: true }).waitFor();
  const reply = await tab.finished(1);
  const written = await reply.innerText();
  await (await held)('continue');
  await tab.until(async () => (await tab.titles())[0] === text, 'the session in the list');
  return written;
}

export async function found(scenario, { queries }) {
  const tab = await scenario.tab();
  await tab.rows().first().waitFor();
  const search = tab.list().getByRole('searchbox');
  const all = [];
  for (const query of queries) {
    await search.fill(query);
    await tab.page.waitForTimeout(100);
    all.push(await tab.titles());
  }
  return all;
}

// A page without TLS, on another machine, has no clipboard.
export async function copied(scenario, { model, text }) {
  const context = await scenario.profile();
  await context.addInitScript(() => Object.defineProperty(navigator, 'clipboard', { value: undefined }));
  const tab = await scenario.tabIn(context);
  await tab.newSession({ model });
  await tab.say(text);
  const reply = await tab.finished(1);
  const copies = [];
  for (const part of [reply.locator('figure'), reply.locator('footer').last(), tab.questions().first()]) {
    await part.hover();
    await part.getByRole('button', { name: 'Copy' }).first().click();
    await part.getByText('Copied').waitFor();
    await tab.message().fill('');
    await tab.message().press('ControlOrMeta+v');
    copies.push(await tab.message().inputValue());
    await part.getByText('Copied').waitFor({ state: 'hidden' });
  }
  await tab.message().fill('');
  return copies;
}

export async function printed(scenario, { session }) {
  const tab = await scenario.tab(`#/talk/${session}`);
  await tab.replies().last().waitFor();
  await tab.page.emulateMedia({ media: 'print' });
  return {
    list: await tab.list().isVisible(), field: await tab.message().isVisible(), last: await tab.replies().last().isVisible(),
    ...(await tab.page.getByRole('log', { name: 'Conversation' }).evaluate((box) => ({ height: box.clientHeight, whole: box.scrollHeight, page: innerHeight }))),
  };
}

// The model that was chosen last is chosen for the next session, also after a reload.
export async function remembered_model(scenario, { model }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  await tab.page.reload();
  await tab.beginning().waitFor();
  await tab.until(async () => (await tab.model().locator('option').count()) > 0, 'models to choose from');
  return tab.model().inputValue();
}

export async function themed(scenario) {
  const tab = await scenario.tab();
  await tab.beginning().waitFor();
  const background = () => tab.page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const seen = [await background()];
  for (let i = 0; i < 2; ++i) await tab.button(/^Colours/).click();
  seen.push(await background());
  await tab.page.reload();
  await tab.beginning().waitFor();
  seen.push(await background());
  return seen;
}

// A first message that umad refuses stands in the field again, and leaves no session behind.
export async function refused_first_message(scenario, { model, text }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  await tab.say(text);
  await tab.alert().first().waitFor();
  const told = await tab.alert().first().innerText();
  await tab.readsAgain();
  return { told, message: await tab.message().inputValue(), titles: await tab.titles() };
}

// After an edit is given up, the keyboard goes on where it was.
export async function edit_given_up(scenario, { model, text }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  await tab.say(text);
  await tab.finished(1);
  await tab.questions().first().getByRole('button', { name: 'Edit' }).click();
  await tab.questions().first().getByRole('textbox').press('Escape');
  return tab.until(() => tab.page.evaluate(() => document.activeElement.title), 'the focus on the button');
}

// A conversation that is as long as the model can read goes on without its oldest turns.
export async function full_context(scenario, { model, question }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  const full = tab.alert().getByText('as long as the model can read');
  let asked = 0;
  while (asked < 9 && !(await full.isVisible())) {
    const text = question.replaceAll('#', ++asked);
    await tab.say(text);
    await tab.until(async () => (await full.isVisible()) || (await tab.page.getByText(`This is reply ${asked}.`, { exact: true }).isVisible()), 'a reply or no room');
    await tab.button('Stop').waitFor({ state: 'hidden' });
  }
  const field = await tab.message().inputValue();
  await tab.button('Drop the oldest turns and go on').click();
  await tab.page.getByText(`This is reply ${asked}.`, { exact: true }).waitFor();
  await tab.button('Stop').waitFor({ state: 'hidden' });
  await tab.say(question.replaceAll('#', 9));
  await tab.page.getByText('This is reply 9.', { exact: true }).waitFor();
  return { id: tab.id(), asked, field, left: await tab.message().inputValue(), isFull: await full.isVisible() };
}

// The list has the sessions used last, and more of them on demand; one that is not listed can be opened.
export async function older_sessions(scenario, { oldest }) {
  const tab = await scenario.tab(`#/talk/${oldest}`);
  await tab.heading('Voyage 0').waitFor();
  await tab.until(async () => (await tab.rows().count()) > 100, 'the list');
  const first = await tab.rows().count();
  const polled = tab.page.waitForResponse((answer) => answer.url().includes('/v1/sessions?'));
  await tab.page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
  const status = (await polled).status();
  await tab.button('Older sessions').click();
  await tab.until(async () => (await tab.rows().count()) > first + 20, 'older sessions');
  const all = await tab.rows().count();
  await tab.readsAgain();
  return { first, status, all, later: await tab.rows().count(), isThere: (await tab.titles()).includes('Voyage 0') };
}

export async function other_model(scenario, { model, other, text }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  await tab.say(text);
  await tab.finished(1);
  const id = tab.id();
  await tab.replies().first().getByRole('combobox', { name: 'Answer with another model' }).selectOption(other);
  await tab.until(async () => tab.id() !== id, 'the other version');
  await tab.finished(1);
  await tab.openDetails();
  const versions = await tab.details().getByRole('link', { name: /^[12]: / }).allInnerTexts();
  return { id, made: tab.id(), versions, rows: (await tab.titles()).filter((title) => title.includes(text)).length };
}

// A long message is folded, and a key shows all keys.
export async function folded(scenario, { session }) {
  const tab = await scenario.tab(`#/talk/${session}`);
  const said = tab.questions().first().locator('.said');
  await said.waitFor();
  const short = (await said.innerText()).length;
  await tab.button(/^Show all/).click();
  const whole = (await said.innerText()).length;
  await tab.page.evaluate(() => document.activeElement.blur());
  await tab.page.keyboard.press('?');
  await tab.dialog('Keys').waitFor();
  await tab.page.keyboard.press('Escape');
  await tab.dialog('Keys').waitFor({ state: 'hidden' });
  await tab.page.evaluate((to) => (location.hash = to), `#/talk/${'0'.repeat(32)}`);
  await tab.page.getByText(/^There is no such session/).waitFor();
  return { short, whole, hasField: await tab.message().isVisible() };
}
