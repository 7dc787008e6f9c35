// The other views: the live view, and managing models, keys, sessions and settings.

const parts = (tab) => tab.page.getByRole('navigation', { name: 'Parts' });
const row = (tab, name) => tab.page.getByRole('row').filter({ has: tab.page.getByRole('cell', { name, exact: true }) });

async function open(tab, part) {
  await tab.link('Manage').click();
  await parts(tab).getByRole('link', { name: part, exact: true }).click();
  await tab.page.getByRole('heading', { name: part, exact: true, level: 1 }).waitFor();
}

// What the live view shows while a reply is written.
export async function live(scenario, { model }) {
  const context = await scenario.profile();
  const tab = await scenario.tabIn(context);
  const writer = await scenario.tabIn(context);
  await writer.newSession({ model });
  await writer.say('Tell me a long story.');
  await writer.until(async () => (await writer.replies().first().innerText().catch(() => '')).length > 40, 'a reply');
  await tab.link('See').click();
  const panels = {};
  for (const name of ['Lanes', 'Speed', 'Queue', 'Models in memory', 'KV tiers', 'Devices', 'Tenants']) {
    await tab.region(name).waitFor();
  }
  const lanes = tab.region('Lanes');
  await lanes.getByText(/1 sequence\b/).waitFor();
  const isDrawn = await lanes.getByRole('img', { name: /^Calls of the lanes/ }).evaluate((canvas) => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return data.some((value) => value !== 0);
  });
  for (const name of ['Lanes', 'Speed', 'Queue', 'Models in memory', 'KV tiers', 'Devices', 'Tenants']) panels[name] = await tab.region(name).innerText();
  const calls = async () => Number(/Decode\s+([\d,]+)/.exec(await lanes.innerText())?.[1].replaceAll(',', '') ?? 0);
  const first = await tab.until(calls, 'calls of the lanes');
  const later = await tab.until(async () => {
    const now = await calls();
    return now !== first && now;
  }, 'the view goes on');
  await writer.button('Stop').click();
  await writer.finished(1);
  await lanes.getByText(/0 sequences/).first().waitFor();
  const trace = await tab.saved(() => tab.button(/^Save the trace/).click());
  return { panels, isDrawn, first, later, trace: JSON.parse(Buffer.from(trace.content, 'base64').toString()).traceEvents.length };
}

export async function load_and_unload(scenario, { model }) {
  const tab = await scenario.tab('#/see');
  const memory = tab.region('Models in memory');
  const loaded = memory.getByRole('button', { name: `Unload ${model}` });
  const unloaded = memory.getByRole('button', { name: `Load ${model}`, exact: true });
  await loaded.or(unloaded).first().waitFor();
  if ((await unloaded.count()) === 1) await unloaded.click();
  await loaded.waitFor();
  await loaded.click();
  await unloaded.waitFor();
  const after = await scenario.ask('state', model);
  await unloaded.click();
  await loaded.waitFor();
  await open(tab, 'Models');
  await row(tab, model).getByRole('cell', { name: 'ready' }).waitFor();
  return { after };
}

// A download that is watched, stopped and continued; then the model is there, talks, and is deleted.
export async function pull(scenario, { source, name, missing }) {
  const tab = await scenario.tab('#/manage/models');
  const field = tab.field(/^Pull a model/);
  await field.fill(missing);
  await tab.button('Pull').click();
  const refused = await tab.alert().innerText();
  await field.fill(source);
  await scenario.ask('hang');
  await tab.button('Pull').click();
  const bar = tab.page.getByRole('progressbar', { name: `Download of ${source}` });
  const part = await tab.until(async () => {
    const value = await bar.evaluate((element) => element.value).catch(() => 0);
    return value > 0 && value;
  }, 'a part of the file');
  const told = await tab.page.getByText(/^m-.*: .* of .*%/).innerText();
  // Every view and every tab shows it.
  const other = await scenario.tab('#/manage/models');
  await other.page.getByText('begun elsewhere').waitFor();
  await tab.link('Talk').click();
  await tab.page.getByRole('banner').getByText(/^model \d+ %$/).waitFor();
  await open(tab, 'Models');
  await tab.button('Stop').click();
  await tab.page.getByText('Stopped. The next pull goes on from here.').waitFor();
  await scenario.ask('stopped');
  await field.fill(source);
  await tab.button('Pull').click();
  await row(tab, name).waitFor();
  await tab.page.getByText(`${source} is here.`).waitFor();
  await row(tab, name).getByRole('button', { name: 'Card' }).click();
  await tab.link('Talk').click();
  await tab.newSession({ model: name });
  await tab.openDetails();
  await tab.setting('Longest reply, tokens').fill('8');
  await tab.say('Hello');
  await tab.finished(1);
  await open(tab, 'Models');
  await row(tab, name).getByRole('button', { name: 'Delete…' }).click();
  await tab.dialog('Delete').getByRole('button', { name: 'Delete' }).click();
  await row(tab, name).waitFor({ state: 'hidden' });
  return { refused, part, told };
}

export async function make_key(scenario, { key, name }) {
  const tab = await scenario.tab('#/manage/keys');
  await tab.useKey(key);
  await tab.field('Name').fill(name);
  await tab.field('Tenant').fill('robots');
  await tab.field('Requests per minute').fill('60');
  await tab.button('Make a key').click();
  const made = tab.page.getByText('The key is shown once.').locator('..');
  const text = await made.innerText();
  await tab.button('Hide').click();
  await made.waitFor({ state: 'hidden' });
  const shown = await tab.page.getByRole('main').innerText();
  const served = await scenario.ask('serves', /uma-[0-9a-f]{64}/.exec(text)[0]);
  const remove = async (answer) => {
    await row(tab, name).getByRole('button', { name: 'Delete…' }).click();
    await tab.dialog('Delete').getByRole('button', { name: answer }).click();
  };
  await remove('Cancel');
  await remove('Delete');
  await row(tab, name).waitFor({ state: 'hidden' });
  return { text, shown, served, kept: await tab.storage() };
}

export async function stored_sessions(scenario, { names }) {
  const tab = await scenario.tab('#/manage/sessions');
  await row(tab, names[0]).waitFor();
  for (const sorting of ['last use', 'tokens', 'bytes']) await tab.page.getByRole('combobox', { name: /^Sorted by/ }).selectOption(sorting);
  for (const name of names.slice(0, 2)) await tab.page.getByRole('checkbox', { name: `Choose ${name}`, exact: true }).check();
  await tab.button('Delete 2 chosen…').click();
  await tab.dialog('Delete').getByRole('button', { name: 'Delete' }).click();
  for (const name of names.slice(0, 2)) await row(tab, name).waitFor({ state: 'hidden' });
  await row(tab, names[2]).waitFor();
  const exported = await tab.saved(() => row(tab, names[2]).getByRole('button', { name: 'Export' }).click());
  await tab.link(names[2]).click();
  await tab.questions().first().waitFor();
  return { size: exported.content.length, name: exported.name };
}

// A card that is wrong, and one that is right.
export async function card(scenario, { model, wrong, right }) {
  const tab = await scenario.tab('#/manage/models');
  await row(tab, model).getByRole('button', { name: 'Card' }).click();
  const field = tab.field('Card in models.yaml');
  await field.waitFor();
  const shown = await field.inputValue();
  await field.fill(wrong);
  await tab.button('Store the card').click();
  const refused = await tab.alert().innerText();
  const after = await scenario.ask('stored');
  await field.fill(right);
  await tab.readsAgain();
  await tab.button('Store the card').click();
  await tab.page.getByText(/^Stored\./).waitFor();
  const table = tab.page.getByRole('table', { name: 'Defaults of sampling' });
  await table.getByRole('cell', { name: 'top_k' }).waitFor();
  return { shown, refused, after, sampling: await table.innerText() };
}

export async function configuration(scenario) {
  const tab = await scenario.tab('#/manage/configuration');
  await tab.page.getByRole('heading', { name: 'Configuration', level: 1 }).waitFor();
  await tab.page.getByRole('main').getByText(/--print-config|http\.address/).first().waitFor();
  return { text: await tab.page.getByRole('main').innerText() };
}
