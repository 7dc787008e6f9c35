// A page of another origin that tries to use umad. It runs in a profile of its own, where nothing is expected to work.

// Runs in the page of the attacker. Returns, by attempt, what it could read or do; null: nothing.
async function attack({ url, session }) {
  const found = {};
  const attempt = async (name, work) => {
    found[name] = await Promise.race([
      work().catch(() => null),
      new Promise((resolve) => setTimeout(() => resolve(null), 5000)),
    ]);
  };
  const body = JSON.stringify({ model: 'tiny-chat', messages: [{ role: 'user', content: 'Hello' }], max_tokens: 2 });
  const json = { 'Content-Type': 'application/json' };
  const requests = {
    page: [''], script: ['page.js'], models: ['v1/models'], sessions: ['v1/sessions'], metrics: ['metrics'], health: ['health'], events: ['v1/events'],
    chat: ['v1/chat/completions', { method: 'POST', body, headers: json }],
    chatAsText: ['v1/chat/completions', { method: 'POST', body }],
    create: ['v1/sessions', { method: 'POST', body: '{"mode":"chat"}' }],
    remove: [`v1/sessions/${session}`, { method: 'DELETE' }],
    put: [`v1/sessions/${session}`, { method: 'PUT', body: '{}' }],
    unload: ['models/unload', { method: 'POST', body: '{"model":"tiny-chat"}' }],
  };
  for (const [name, [path, options]] of Object.entries(requests)) {
    for (const mode of ['cors', 'no-cors']) {
      for (const credentials of ['omit', 'include']) {
        await attempt(`fetch ${mode} ${credentials} ${name}`, async () => (await (await fetch(url + path, { ...options, mode, credentials })).text()) || null);
      }
    }
    await attempt(`xhr ${name}`, () => new Promise((resolve) => {
      const request = new XMLHttpRequest();
      request.open(options?.method ?? 'GET', url + path);
      request.onloadend = () => resolve(request.responseText || null);
      request.send(options?.body);
    }));
  }
  await attempt('beacon', async () => void navigator.sendBeacon(`${url}v1/sessions`, '{"mode":"chat"}'));
  await attempt('events', () => new Promise((resolve) => {
    const events = new EventSource(`${url}v1/events`);
    events.onmessage = () => resolve('an event');
    events.onopen = () => resolve('open');
    events.onerror = () => resolve(null);
  }));
  await attempt('socket', () => new Promise((resolve) => {
    const socket = new WebSocket(url.replace('http', 'ws'));
    socket.onopen = () => resolve('open');
    socket.onerror = () => resolve(null);
  }));
  // Elements say whether they were loaded.
  const elements = {
    img: [['src', 'v1/models']], script: [['src', 'page.js'], ['type', 'text/javascript']], module: [['src', 'page.js'], ['type', 'module']],
    link: [['href', 'page.css'], ['rel', 'stylesheet']], video: [['src', 'v1/models']], object: [['data', 'v1/models']],
  };
  for (const [name, attributes] of Object.entries(elements)) {
    await attempt(`<${name}>`, () => new Promise((resolve) => {
      const element = document.createElement(name === 'module' ? 'script' : name);
      element.onload = element.onloadeddata = () => resolve('loaded');
      element.onerror = () => resolve(null);
      for (const [attribute, value] of attributes) element.setAttribute(attribute, ['src', 'href', 'data'].includes(attribute) ? url + value : value);
      document.body.append(element);
    }));
  }
  for (const path of ['', 'v1/models']) {
    await attempt(`<iframe> ${path}`, () => new Promise((resolve) => {
      const frame = document.createElement('iframe');
      frame.onload = () => {
        let text = null;
        try {
          text = frame.contentDocument?.body?.innerText || null;
        } catch {
          // Another origin: nothing can be read.
        }
        resolve(text);
      };
      frame.src = url + path;
      document.body.append(frame);
    }));
  }
  await attempt('form', () => new Promise((resolve) => {
    const frame = document.createElement('iframe');
    frame.name = 'target';
    document.body.append(frame);
    const form = document.createElement('form');
    Object.assign(form, { action: `${url}v1/sessions`, method: 'post', enctype: 'text/plain', target: 'target' });
    const field = document.createElement('input');
    Object.assign(field, { name: '{"mode":"chat","name":"', value: '"}' });
    form.append(field);
    document.body.append(form);
    frame.onload = () => setTimeout(() => resolve(null), 300);
    form.submit();
  }));
  return found;
}

export async function refused(scenario, { attacker, session }) {
  const profile = await scenario.profile({}, false);
  const page = await profile.newPage();
  await page.goto(attacker);
  const found = await page.evaluate(attack, { url: scenario.url, session });
  const frames = page.frames().slice(1).map((frame) => frame.url());
  const texts = [];
  for (const frame of page.frames().slice(1)) texts.push(await frame.locator('body').innerText().catch(() => ''));
  // A form may also take the whole tab along.
  await page.goto(attacker);
  const [answer] = await Promise.all([page.waitForNavigation(), page.evaluate((url) => {
    document.body.innerHTML = `<form method="post" enctype="text/plain" action="${url}v1/sessions"><input name='{"mode":"chat","name":"' value='"}'></form>`;
    document.forms[0].submit();
  }, scenario.url)]);
  return { found, frames, texts, formStatus: answer.status() };
}

// A link from elsewhere may open the page, which then has nothing to do with the page of the link.
export async function opened(scenario, { attacker }) {
  const profile = await scenario.profile({}, false);
  const page = await profile.newPage();
  await page.goto(attacker);
  const [popup] = await Promise.all([profile.waitForEvent('page'), page.evaluate((url) => {
    const link = document.createElement('a');
    link.href = url;
    link.textContent = 'umad';
    document.body.append(link);
    window.child = window.open(url);
  }, scenario.url)]);
  await popup.getByRole('textbox', { name: 'Message' }).waitFor();
  const handle = await page.evaluate(() => {
    try {
      return { isClosed: window.child.closed, title: window.child.document?.title ?? null };
    } catch (error) {
      return { isClosed: window.child.closed, title: null, error: error.name };
    }
  });
  const opener = await popup.evaluate(() => window.opener === null);
  await page.getByRole('link', { name: 'umad' }).click();
  await page.getByRole('textbox', { name: 'Message' }).waitFor();
  return { handle, opener };
}

// A name of the attacker's that points to this machine (DNS rebinding).
export async function rebound(scenario, { address }) {
  const profile = await scenario.profile({}, false);
  const page = await profile.newPage();
  const answer = await page.goto(address);
  return { status: answer.status(), models: await page.evaluate(async () => (await fetch('/v1/models')).status), text: await page.locator('body').innerText() };
}
