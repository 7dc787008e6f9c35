// Texts that mean harm, wherever the page shows one. They may be seen, and nothing else.

// What in the tab could do more than show a text. Runs in the tab.
function harmOf() {
  const found = [];
  if (window.hit !== undefined) found.push(`a script ran: ${window.hit}`);
  for (const element of document.querySelectorAll('*')) {
    const name = element.localName;
    if (['iframe', 'object', 'embed', 'base', 'style', 'frame', 'audio', 'video', 'template', 'portal'].includes(name)) found.push(`<${name}>`);
    // Only the head of index.html has scripts, styles and an icon.
    const isOwn = element.parentElement === document.head && /^(page|chunks\/[\w-]+)\.(js|css)$|^data:/.test(element.getAttribute('src') ?? element.getAttribute('href') ?? '');
    if ((name === 'script' || name === 'link') && !isOwn) found.push(`<${name} ${element.getAttribute('src') ?? element.getAttribute('href')}>`);
    if (name === 'meta' && element.httpEquiv === 'refresh') found.push('<meta refresh>');
    if (name === 'img' && !/^(data:image\/(png|jpeg|gif|bmp|webp);base64,|blob:)/.test(element.src)) found.push(`<img ${element.src}>`);
    for (const { name: attribute, value } of element.attributes) {
      if (attribute.startsWith('on') || attribute === 'srcdoc' || attribute === 'formaction' || attribute === 'action') found.push(`${name} ${attribute}=${value}`);
      if (!isOwn && ['href', 'xlink:href', 'src', 'data', 'poster'].includes(attribute) && /^\s*(javascript|vbscript|file|data:text|data:image\/svg)/i.test(value)) found.push(`${name} ${attribute}=${value}`);
    }
    if (name === 'a' && /^https?:/.test(element.getAttribute('href') ?? '') && !element.rel.includes('noopener')) found.push(`a link that gives this page away: ${element.href}`);
  }
  // Controls of terminals and of the direction of text must not reach the screen or a screen reader. U+200E and U+200F may: they say
  // only to which word a mark between two scripts belongs.
  const invisible = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/;
  const said = [document.title, document.body.textContent, ...[...document.querySelectorAll('[aria-label], [title], [alt]')].map((each) => `${each.ariaLabel} ${each.title} ${each.alt}`)];
  for (const text of said) {
    const at = text.search(invisible);
    if (at >= 0) found.push(`the character ${text.codePointAt(at).toString(16)} in ${JSON.stringify(text.slice(Math.max(0, at - 40), at + 20))}`);
  }
  return found.slice(0, 20);
}

// The tab answers: a draft can be written, and the reply shown in another way.
async function answers(tab) {
  await tab.message().fill('still here');
  const toggle = tab.replies().last().getByRole('button', { name: 'Show as text' });
  if ((await toggle.count()) > 0) {
    await toggle.click();
    await toggle.click();
  }
  return (await tab.message().inputValue()) === 'still here';
}

// Opens stored sessions one after another in one tab. `texts`: by session, the text that its reply has instead.
export async function stored(scenario, { sessions, texts = {} }) {
  const context = await scenario.profile();
  await context.route('**/items?*', async (route) => {
    const answer = await route.fetch();
    const page = await answer.json();
    const text = texts[/conv_([0-9a-f]+)/.exec(route.request().url())[1]];
    for (const item of page.data) if (text !== undefined && item.role === 'assistant') item.content[0].text = text;
    await route.fulfill({ response: answer, json: page });
  });
  const tab = await scenario.tabIn(context);
  await tab.beginning().waitFor();
  const seen = {};
  for (const [name, id] of Object.entries(sessions)) {
    await tab.page.evaluate((to) => (location.hash = to), `#/talk/${id}`);
    await tab.replies().first().waitFor();
    for (const summary of await tab.page.getByRole('log').getByText(/^(Reasoning|System prompt)$/).all()) await summary.click();
    seen[name] = { harm: await tab.page.evaluate(harmOf), isAlive: await answers(tab), text: (await tab.replies().first().innerText()).slice(0, 2000) };
  }
  await tab.openDetails();
  return { seen, harm: await tab.page.evaluate(harmOf) };
}

// Replies as they are written.
export async function written(scenario, { model, tools, questions }) {
  const tab = await scenario.tab();
  await tab.openDetails();
  await tab.newSession({ model });
  await tab.setting('Tools, as a JSON array').fill(JSON.stringify(tools));
  const harm = [];
  for (const [i, question] of questions.entries()) {
    await tab.say(question);
    await tab.finished(i + 1);
    harm.push(...await tab.page.evaluate(harmOf));
  }
  return { id: tab.id(), harm, isAlive: await answers(tab), ...(await tab.texts()) };
}

// Names of sessions, models and files, in every view that shows them.
export async function names(scenario, { title, tag, session, model, files }) {
  const tab = await scenario.tab(`#/talk/${session}`);
  const harm = {};
  const note = async (place) => (harm[place] = await tab.page.evaluate(harmOf));
  await tab.replies().first().waitFor();
  await tab.openDetails();
  await tab.sessionName().fill(title);
  await tab.sessionName().press('Tab');
  await tab.page.getByRole('main').getByRole('heading').filter({ hasText: 'window.hit' }).waitFor();
  await tab.setting(/^Tags/).fill(tag);
  await tab.setting(/^Tags/).press('Tab');
  await tab.list().getByText(tag, { exact: true }).waitFor();
  await note('list');
  await tab.button('Delete…').click();
  await note('question');
  await tab.dialog('Delete').getByRole('button', { name: 'Cancel' }).click();
  const saved = [];
  for (const name of ['Export', 'Save as Markdown']) saved.push((await tab.saved(() => tab.button(name).click())).name);
  for (const file of files) {
    const [chooser] = await Promise.all([tab.page.waitForEvent('filechooser'), tab.list().getByRole('button', { name: 'Import…' }).click()]);
    await chooser.setFiles({ name: file, mimeType: 'application/octet-stream', buffer: Buffer.from('no session') });
    await tab.alert().waitFor();
    await note(file);
    await tab.alert().getByRole('button', { name: 'Close' }).click();
  }
  await tab.newSession();
  await tab.model().selectOption(model);
  await note('choice');
  await tab.setting('Longest reply, tokens').fill('8');
  await tab.say('Hello');
  await tab.finished(1);
  await note('conversation');
  await tab.link('See').click();
  await tab.region('Models in memory').getByText("onload=hit='model'").first().waitFor();
  await note('see');
  for (const part of ['Models', 'Keys', 'Sessions', 'Configuration']) {
    await tab.link('Manage').click();
    await tab.page.getByRole('navigation', { name: 'Parts' }).getByRole('link', { name: part }).click();
    await tab.page.getByRole('heading', { name: part, exact: true, level: 1 }).waitFor();
    if (part === 'Sessions') await tab.page.getByRole('row').nth(1).waitFor();
    await note(`manage ${part}`);
  }
  await tab.link('Talk').click();
  return { harm, saved };
}

// Places in the address that are none.
export async function addresses(scenario, { places }) {
  const tab = await scenario.tab();
  const harm = [];
  for (const place of places) {
    await tab.page.goto('about:blank');
    await tab.page.goto(scenario.url + place);
    await tab.page.getByRole('navigation', { name: 'Views' }).waitFor();
    await tab.page.getByRole('banner').getByText(/^umad \d/).waitFor();
    harm.push(...await tab.page.evaluate(harmOf));
  }
  return { harm };
}
