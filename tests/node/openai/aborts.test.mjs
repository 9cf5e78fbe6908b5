// A caller of the OpenAI SDK that leaves ends the work behind it.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { APIConnectionTimeoutError, APIUserAbortError } from 'openai';

import { assertCancels, count, eventually, model } from '../server.mjs';
import { client } from './client.mjs';

const messages = [{ role: 'user', content: 'one two three' }];
const slow = { script: { tokens: ['a'], first_delay_s: 60 } };
const stuck = { script: { tokens: ['a', 'b'], fail: { kind: 'hang', after_tokens: 1 } } };
const streams = {
  chat: (body) => client().chat.completions.create({ model, messages, stream: true, ...body }),
  completions: (body) => client().completions.create({ model, prompt: 'x', stream: true, ...body }),
  responses: (body) => client().responses.create({ model, input: 'x', stream: true, ...body }),
};

for (const [route, create] of Object.entries(streams)) {
  test(`leaving the loop over a stream of ${route} reaches the backend`, async () => {
    await assertCancels(async () => {
      for await (const event of await create(stuck)) if (JSON.stringify(event).includes('"a"')) break;
    });
  });

  test(`aborting a stream of ${route} reaches the backend`, async () => {
    await assertCancels(async () => {
      const stream = await create(stuck);
      for await (const event of stream) if (JSON.stringify(event).includes('"a"')) stream.controller.abort();
    });
  });
}

for (const [what, ask] of Object.entries({
  'a whole chat': (options) => client().chat.completions.create({ model, messages, ...slow }, options),
  'a streamed chat': (options) => client().chat.completions.create({ model, messages, stream: true, ...slow }, options),
  embeddings: (options) => client().embeddings.create({ model, input: 'x', ...slow }, options),
  'a whole response': (options) => client().responses.create({ model, input: 'x', ...slow }, options),
})) {
  test(`aborting ${what} before the first byte reaches the backend`, async () => {
    await assertCancels(async () => {
      const leaving = new AbortController();
      const asked = assert.rejects(ask({ signal: leaving.signal }), APIUserAbortError);
      await eventually(async () => (await count('running')) === 1, 'it runs');
      leaving.abort();
      await asked;
    });
  });
}

test('aborting the helpers of streams reaches the backend', async () => {
  await assertCancels(async () => {
    const runner = client().chat.completions.stream({ model, messages, ...stuck });
    runner.on('content', () => runner.abort());
    await assert.rejects(runner.done(), APIUserAbortError);
  });
  await assertCancels(async () => {
    const runner = client().responses.stream({ model, input: 'x', ...stuck });
    runner.on('response.output_text.delta', () => runner.abort());
    await assert.rejects(runner.done(), APIUserAbortError);
  });
});

test('a time-out of the client reaches the backend, for each of its tries', async () => {
  const before = await count('cancelled');
  const asked = client({ timeout: 1000, maxRetries: 1 }).chat.completions.create({ model, messages, ...slow });

  await assert.rejects(asked, APIConnectionTimeoutError);
  await eventually(async () => (await count('cancelled')) === before + 2, 'both cancels arrive');
  assert.equal(await count('running'), 0);
});

test('the time-out of a call, which the SDK announces, ends the work, also where nobody sees the client leave', async () => {
  const deaf = client({ fetch: (url, { signal, ...init }) => fetch(url, init) });
  const asked = deaf.chat.completions.create({ model, messages, ...slow }, { timeout: 1000 });

  await assert.rejects(asked, { status: 504, code: 'deadline_exceeded' });
});
