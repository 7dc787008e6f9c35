// Talking: a session from its first message, replies of every kind, and what can be done with them.

export async function first_load(scenario) {
  const tab = await scenario.tab();
  await tab.beginning().waitFor();
  const model = tab.model();
  await tab.until(async () => (await model.locator('option').count()) > 0, 'models to choose from');
  await tab.page.getByRole('banner').getByText(/^umad \d/).waitFor();
  return {
    title: await tab.page.title(),
    models: await model.locator('option').allInnerTexts(),
    views: await tab.page.getByRole('navigation', { name: 'Views' }).getByRole('link').allInnerTexts(),
    alerts: await tab.alert().allInnerTexts(),
    hasFocus: await tab.message().evaluate((element) => element === document.activeElement),
  };
}

// A reply with everything that Markdown has, then a second turn.
export async function markdown(scenario, { model, system, first, second }) {
  const tab = await scenario.tab();
  await tab.newSession({ model, system });
  await tab.say(first);
  const reply = await tab.finished(1);
  await reply.getByRole('math').first().waitFor();
  await reply.locator('code span').first().waitFor();  // The colours of code come later.
  const shown = {
    heading: await reply.getByRole('heading', { name: 'Harbours' }).innerText(),
    bold: await reply.getByRole('strong').allInnerTexts(),
    items: await reply.getByRole('listitem').allInnerTexts(),
    cells: await reply.getByRole('cell').allInnerTexts(),
    code: await reply.locator('pre').allInnerTexts(),
    links: await reply.getByRole('link').evaluateAll((all) => all.map((link) => [link.innerText, link.href, link.rel, link.target])),
    formulas: await reply.getByRole('math').count(),
  };
  const receipt = await tab.receipt(reply);
  await tab.say(second);
  const next = await tab.finished(2);
  const nextReceipt = await tab.receipt(next);
  await tab.page.getByText('System prompt', { exact: true }).click();
  const shownSystem = await tab.page.getByText(system, { exact: true }).isVisible();
  await tab.openDetails();
  return {
    id: tab.id(), title: await tab.page.title(), titles: await tab.titles(), ...(await tab.texts()), shown, receipt, nextReceipt, shownSystem,
    details: await tab.details().innerText(),
  };
}

// A reply that grows, is stopped by the button, and one that is stopped by Escape.
export async function stopped(scenario, { model }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  await tab.say('Tell me a long story.');
  const reply = tab.replies().first();
  const lengths = [];
  for (const atLeast of [20, 200]) {
    lengths.push(await tab.until(async () => {
      const { length } = await reply.innerText();
      return length > atLeast && length > (lengths[0] ?? 0) && length;
    }, 'a reply that grows'));
  }
  const isBusy = (await reply.getAttribute('aria-busy')) === 'true';
  await tab.button('Stop').click();
  await tab.finished(1);
  const receipt = await reply.getByText('The reply was stopped.').innerText();
  await tab.say('Go on.');
  await tab.until(async () => (await tab.replies().nth(1).innerText()).length > 40, 'the second reply');
  await tab.page.keyboard.press('Escape');
  await tab.finished(2);
  await tab.replies().nth(1).getByText('The reply was stopped.').waitFor();
  return { id: tab.id(), lengths, isBusy, receipt, ...(await tab.texts()) };
}

// Stop is pressed while umad has not answered the request for a reply, as while it loads the model.
export async function stopped_before_it_begins(scenario, { model, text }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  const held = tab.held('**/v1/responses');
  await tab.say(text);
  const release = await held;
  await tab.button('Stop').click();
  await tab.button('Answer').waitFor();
  await tab.button('Send').waitFor();
  const replies = await tab.replies().count();
  const problem = (await tab.alert().allInnerTexts()).join();
  const cancelled = tab.page.waitForResponse((answer) => answer.url().endsWith('/cancel'));
  await release('continue');
  await (await cancelled).finished();
  await tab.button('Stop').waitFor({ state: 'hidden' });
  return { id: tab.id(), replies, problem };
}

// The second of two messages is changed; then the page moves between the two versions.
export async function edited(scenario, { model, first, second, other }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  await tab.say(first);
  await tab.finished(1);
  await tab.say(second);
  await tab.finished(2);
  const old = tab.id();
  await tab.questions().nth(1).getByRole('button', { name: 'Edit' }).click();
  await tab.message().waitFor();
  const field = tab.questions().nth(1).getByRole('textbox', { name: 'Message' });
  const offered = await field.inputValue();
  await field.fill(other);
  await tab.button('Send as another version').click();
  await tab.until(async () => tab.id() !== old, 'another session');
  await tab.finished(2);
  const id = tab.id();
  const branch = await tab.texts();
  const marks = await tab.page.getByRole('group', { name: 'Versions' }).allInnerTexts();
  const tree = await tab.titles();
  await tab.link('Earlier version').click();
  await tab.until(async () => tab.id() === old, 'the first session');
  await tab.questions().getByText(second, { exact: true }).waitFor();
  await tab.finished(2);
  return { old, id, offered, marks, tree, branch, before: await tab.texts() };
}

// Turns are dropped from a full context; the first message of those that are left is changed.
export async function edited_after_shift(scenario, { model, system, question, other }) {
  const tab = await scenario.tab();
  await tab.newSession({ model, system });
  await tab.field('When the context is full, drop the oldest turns and go on').check();
  const asked = async () => (await tab.questions().locator('.said').allInnerTexts()).map((text) => text.trim());
  const all = [];
  let kept = [];
  do {
    const text = question.replaceAll('#', all.length + 1);
    all.push(text);
    await tab.say(text);
    await tab.page.getByText(`This is reply ${all.length}.`, { exact: true }).waitFor();
    await tab.button('Stop').waitFor({ state: 'hidden' });
    kept = await asked();
  } while (kept.length === all.length && all.length < 9);
  const old = tab.id();
  await tab.questions().first().getByRole('button', { name: 'Edit' }).click();
  await tab.questions().first().getByRole('textbox', { name: 'Message' }).fill(other);
  await tab.button('Send as another version').click();
  await tab.until(async () => tab.id() !== old, 'another session');
  await tab.page.getByText('This is reply 7.', { exact: true }).waitFor();
  await tab.finished(1);
  return { old, id: tab.id(), kept, dropped: all.filter((text) => !kept.includes(text)) };
}

// The reply to the first message is written again with another limit.
export async function regenerated(scenario, { model }) {
  const tab = await scenario.tab();
  await tab.openDetails();
  await tab.newSession({ model });
  await tab.setting('Longest reply, tokens').fill('20');
  await tab.say('Hello');
  const receipt = await tab.receipt(await tab.finished(1));
  const old = tab.id();
  await tab.setting('Longest reply, tokens').fill('5');
  await tab.button('Regenerate').click();
  await tab.until(async () => tab.id() !== old, 'another session');
  // The version begins as a fork, with the reply that is to be replaced.
  const again = await tab.until(async () => {
    const shown = await tab.receipt(await tab.finished(1));
    return shown !== receipt && shown;
  }, 'another reply');
  return { old, id: tab.id(), receipt, again, marks: await tab.page.getByRole('group', { name: 'Versions' }).allInnerTexts() };
}

// Returns the requests for replies that the page sends.
function requestsOf(tab) {
  const sent = [];
  tab.page.on('request', (request) => request.url().endsWith('/v1/responses') && sent.push(request.postDataJSON()));
  return sent;
}

// Sampling, a schema, stop texts: what is set reaches umad; what is wrong is said, and nothing is lost.
export async function settings(scenario, { model, schema }) {
  const tab = await scenario.tab();
  const sent = requestsOf(tab);
  await tab.openDetails();
  await tab.newSession({ model });
  const set = { 'top_k': '7', 'Seed': '3', 'Longest reply, tokens': '12' };
  for (const [name, value] of Object.entries(set)) await tab.setting(name).fill(value);
  // What is being typed stays, also while it is not allowed, and when the list of sessions is read again.
  await tab.setting('Temperature').pressSequentially('0.05');
  await tab.setting('Repeat penalty').pressSequentially('0.0');
  await tab.readsAgain();
  await tab.setting('Repeat penalty').pressSequentially('5');
  await tab.say('Hello');
  await tab.finished(1);
  await tab.setting('Longest reply, tokens').fill('');
  await tab.setting('JSON Schema of the reply').fill('{"type":');
  await tab.say('What day is it?');
  const wrong = await tab.alert().innerText();
  const kept = await tab.until(() => tab.message().inputValue(), 'the message stands there again');
  await tab.setting('JSON Schema of the reply').fill(JSON.stringify(schema));
  await tab.message().press('Enter');
  const reply = await tab.finished(2);
  await tab.page.reload();
  await tab.finished(2);
  await tab.openDetails();
  const values = {};
  for (const name of ['Temperature', 'top_k', 'Seed', 'JSON Schema of the reply']) values[name] = await tab.setting(name).inputValue();
  return { id: tab.id(), sent, wrong, kept, text: await reply.innerText(), values };
}

export async function token_count(scenario, { model, text }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  await tab.message().fill(text);
  await tab.about().getByText(/This message: .*token/).waitFor();
  const counted = await tab.about().innerText();
  await tab.page.reload();
  return { counted, draft: await tab.message().inputValue() };
}

// Pictures by paste, by drop and from a file, of which one is taken away.
export async function pictures(scenario, { model, blind, pasted, dropped, files }) {
  const tab = await scenario.tab();
  await tab.openDetails();
  await tab.setting('Longest reply, tokens').fill('8');
  await tab.newSession({ model });
  const shown = tab.page.getByRole('list', { name: 'Pictures of the message' }).getByRole('img');
  const count = (number) => tab.until(async () => (await shown.count()) === number, `${number} pictures`);
  await tab.give(tab.message(), 'paste', 'a.png', pasted);
  await count(1);
  await tab.give(tab.message(), 'drop', 'b.png', dropped);
  await count(2);
  const [chooser] = await Promise.all([tab.page.waitForEvent('filechooser'), tab.button('Picture…').click()]);
  await chooser.setFiles(files);
  await count(3);
  await tab.button('Remove picture 3').click();
  await count(2);
  await tab.say('What is this?');
  await tab.finished(1);
  const inMessage = async () => {
    const images = tab.questions().first().getByRole('img');
    await tab.until(async () => (await images.count()) === 2, 'two pictures in the message');
    return images.evaluateAll((all) => all.map((image) => [image.naturalWidth, image.naturalHeight, image.src.slice(0, 22)]));
  };
  const sent = await inMessage();
  const id = tab.id();
  await tab.page.reload();
  await tab.finished(1);
  const stored = await inMessage();
  await tab.newSession({ model: blind });
  await tab.give(tab.message(), 'drop', 'b.png', dropped);
  return { id, sent, stored, refused: await tab.alert().innerText() };
}

// Pictures that a model draws: two at once, and one that is stopped.
export async function drawn(scenario, { model }) {
  const tab = await scenario.tab();
  await tab.newSession({ model });
  await tab.field('Caption').fill('a red circle');
  await tab.page.getByText('Options', { exact: true }).click();
  await tab.field('Steps').fill('4');
  await tab.field('Seed').fill('5');
  await tab.field('Pictures').fill('2');
  await tab.button('Draw').click();
  const finished = tab.page.getByRole('figure').filter({ has: tab.link('Save') });
  await tab.until(async () => (await finished.count()) === 2, 'two pictures');
  await tab.button('Draw').waitFor();
  const sizes = await finished.getByRole('img').evaluateAll((all) => all.map((image) => [image.naturalWidth, image.naturalHeight, image.alt]));
  const captions = (await finished.locator('figcaption').allInnerTexts()).map((text) => text.replace(/\s+/g, ' '));
  const { content } = await tab.saved(() => finished.first().getByRole('link', { name: 'Save' }).click());
  await tab.field('Steps').fill('150');
  await tab.button('Draw').click();
  await tab.button('Stop').click();
  await tab.button('Draw').waitFor();
  await tab.field('Size').fill('1x1');
  await tab.field('Steps').fill('4');
  await tab.button('Draw').click();
  return { sizes, captions, file: content, refused: await tab.alert().innerText(), count: await finished.count() };
}

// A reply with reasoning and a call of a tool, its result, and the answer.
export async function tools(scenario, { model, tools, question, result }) {
  const tab = await scenario.tab();
  await tab.openDetails();
  await tab.newSession({ model });
  await tab.setting('Tools, as a JSON array').fill(JSON.stringify(tools));
  await tab.say(question);
  const reply = await tab.finished(1);
  const call = reply.getByRole('region', { name: /^Tool call/ });
  await call.waitFor();
  await reply.getByText('Reasoning', { exact: true }).click();
  const shown = { call: await call.innerText(), args: await call.locator('pre').innerText(), reply: await reply.innerText() };
  await tab.field(/^Result of/).fill(result);
  await tab.button('Send the result').click();
  const answer = await tab.finished(2);
  return {
    id: tab.id(), shown, answer: await answer.innerText(), result: await tab.page.getByRole('region', { name: 'Result of a tool call' }).innerText(),
    receipt: await tab.receipt(reply),
  };
}
