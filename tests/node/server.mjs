// The server that the tests of this folder talk to, and what can be seen of it from outside.

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';

export const url = process.env.LANEWAY_URL;
export const baseURL = `${url}/v1`;
export const model = 'scripted';

/** The secrets of keys, by what is special about them; `all` may do everything. */
export const keys = JSON.parse(process.env.LANEWAY_KEYS);

/** A counter of the scripted backend: started, cancelled, running. */
export async function count(word) {
  const reply = await fetch(`${url}/metrics`, { headers: { authorization: `Bearer ${keys.all}` } });
  const line = new RegExp(`^laneway_scripted_${word}(?:_total)?(?:\\{.*\\})? (\\S+)$`, 'm');
  return Number(line.exec(await reply.text())[1]);
}

/** Wait for what the server does by itself; how long it takes does not matter. */
export async function eventually(holds, what) {
  for (const giveUpAt = Date.now() + 20_000; !(await holds()); await sleep(10)) {
    assert.ok(Date.now() < giveUpAt, `did not happen: ${what}`);
  }
}

/** All that a stream or a list of pages has. */
export async function collect(iterable) {
  const all = [];
  for await (const item of iterable) all.push(item);
  return all;
}

/** Do `leave`, which has a client go away while its request runs, and wait until the backend was told. */
export async function assertCancels(leave) {
  const before = await count('cancelled');
  await leave();
  await eventually(async () => (await count('cancelled')) === before + 1, 'the cancel arrives');
  assert.equal(await count('running'), 0);
}
