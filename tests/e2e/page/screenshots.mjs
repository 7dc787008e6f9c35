// Makes the pictures of the page for the documentation. tools/page_screenshots.py runs it.

const desktop = { viewport: { width: 1280, height: 800 }, colorScheme: 'light', reducedMotion: 'reduce' };
const phone = { viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, colorScheme: 'light', reducedMotion: 'reduce' };

async function talk(tab, { model, talks }) {
  for (const { title, tags, messages, edit } of talks) {
    await tab.newSession({ model });
    for (const [i, text] of messages.entries()) {
      await tab.say(text);
      await tab.finished(i + 1);
    }
    await tab.openDetails();
    await tab.sessionName().fill(title);
    await tab.sessionName().press('Tab');
    await tab.heading(title).waitFor();
    await tab.setting(/^Tags/).fill(tags);
    await tab.setting(/^Tags/).press('Tab');
    await tab.list().getByText(title, { exact: true }).waitFor();
    if (!edit) continue;
    const before = tab.id();
    await tab.questions().last().getByRole('button', { name: 'Edit' }).click();
    const field = tab.questions().last().getByRole('textbox', { name: 'Message' });
    await field.fill(edit);
    await tab.button('Send as another version').click();
    await tab.until(async () => tab.id() !== before, 'the branch');
    await tab.finished(messages.length);
  }
}

export async function all(scenario, options) {
  const context = await scenario.profile(desktop);
  const tab = await scenario.tabIn(context);
  const shoot = (each, name) => each.page.screenshot({ path: `${options.folder}/${name}.png`, animations: 'disabled' });
  await talk(tab, options);
  await tab.replies().first().getByRole('math').first().waitFor();
  await tab.page.getByRole('log').evaluate((element) => (element.scrollTop = 0));
  await shoot(tab, 'page_talk');

  // Two replies are written while the live view is open.
  const writers = [];
  for (let i = 0; i < 2; ++i) {
    const writer = await scenario.tabIn(context);
    await writer.newSession({ model: options.storyteller });
    await writer.say(`Tell me a long story about ship ${i + 1}.`);
    await writer.until(async () => (await writer.replies().first().innerText().catch(() => '')).length > 40, 'a reply');
    writers.push(writer);
  }
  await tab.page.bringToFront();
  await tab.link('See').click();
  await tab.region('Lanes').getByText(/Decode/).first().waitFor();
  await tab.page.waitForTimeout(12_000);  // So that the charts have something to show.
  await shoot(tab, 'page_see');
  for (const writer of writers) await writer.button('Stop').click();

  await tab.link('Manage').click();
  await tab.page.getByRole('heading', { name: 'Models', exact: true, level: 1 }).waitFor();
  await tab.region('Models in memory').or(tab.heading('Models in memory')).first().waitFor();
  await tab.page.getByRole('row').nth(1).waitFor();
  await shoot(tab, 'page_manage');

  const small = await scenario.tab('', phone);
  await small.button('Sessions').tap();
  await small.rows().getByRole('link', { name: options.talks.at(-1).title }).first().tap();
  await small.finished(1);
  await small.page.getByRole('log').evaluate((element) => (element.scrollTop = 0));
  await shoot(small, 'page_phone');
  return {};
}
