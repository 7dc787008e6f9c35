// Runs scenarios in one browser, one after another:
//   node driver.mjs CHROMIUM WAIT_MS
// A line of JSON on the standard input begins one: {"scenario", "url", "options", "expects", "failures"}. Each line of the output
// is {"ask", "value"}, which the next line of the input answers, or the end of the scenario: {"result", "faults"} or
// {"error", "faults"}. tests/e2e/browser.py is the other side.
import { createInterface } from 'node:readline';
import { chromium } from 'playwright-core';
import { Scenario } from './tab.mjs';

const groups = ['talk', 'sessions', 'views', 'hostile', 'origins', 'looks', 'habits', 'screenshots'];

const [executablePath, waitMs] = process.argv.slice(2);
const args = ['--no-proxy-server', '--disable-dev-shm-usage', '--host-resolver-rules=MAP *.example 127.0.0.1'];
if (process.getuid() === 0) args.push('--no-sandbox');
const browser = await chromium.launch({ executablePath, args, timeout: Number(waitMs) });

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const nextLine = async () => {
  const { done, value } = await lines.next();
  return done ? null : JSON.parse(value);
};
const say = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
const ask = async (what, value) => {
  say({ ask: what, value });
  return (await nextLine())?.value;
};

for (let wanted = await nextLine(); wanted; wanted = await nextLine()) {
  const [group, name] = wanted.scenario.split('.');
  if (!groups.includes(group)) throw new Error(`there is no group ${group}`);
  const scenarios = await import(`./${group}.mjs`);
  const scenario = new Scenario(browser, wanted, Number(waitMs), ask);
  try {
    const result = await scenarios[name](scenario, wanted.options);
    await scenario.close();
    say({ result: result ?? null, faults: scenario.faults });
  } catch (error) {
    const seen = await scenario.describe();
    await scenario.close();
    say({ error: `${error.stack}\n${seen}`, faults: scenario.faults });
  }
}
await browser.close();
