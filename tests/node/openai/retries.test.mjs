// When the OpenAI SDK tries again, and how it is told when to.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { InternalServerError, RateLimitError } from 'openai';

import { count, keys, model } from '../server.mjs';
import { client } from './client.mjs';

const messages = [{ role: 'user', content: 'one two three' }];

/** A client that notes the status of each try, and how often it says that it tried before. */
function watched(options) {
  const tries = [];
  const counting = client({
    ...options,
    fetch: async (url, init) => {
      const reply = await fetch(url, init);
      tries.push([reply.status, new Headers(init.headers).get('x-stainless-retry-count')]);
      return reply;
    },
  });
  return { counting, tries };
}

test('what may pass is tried again, as often as the client says', async () => {
  const { counting, tries } = watched({ maxRetries: 1 });
  const before = await count('started');
  const asked = counting.chat.completions.create({ model, messages, script: { fail: { kind: 'crash' } } });

  await assert.rejects(asked, InternalServerError);
  assert.deepEqual(tries, [
    [500, '0'],
    [500, '1'],
  ]);
  assert.equal((await count('started')) - before, 2);
});

test('a backend without room is asked again after the time that it said', async () => {
  const { counting, tries } = watched({ maxRetries: 1 });
  const asked = counting.chat.completions.create({ model, messages, script: { fail: { kind: 'overloaded' } } });

  await assert.rejects(asked, (error) => error.headers.get('retry-after-ms') === '1000');
  assert.deepEqual(tries.map(([status]) => status), [503, 503]);
});

test('a caller that meets its rate limit waits as told and is served', async () => {
  const { counting, tries } = watched({ apiKey: keys.twoASecond, maxRetries: 1 });
  const isLimited = () => tries.some(([status]) => status === 429);
  while (!isLimited()) await counting.chat.completions.create({ model, messages });

  assert.deepEqual(tries.slice(-2), [
    [429, '0'],
    [200, '1'],
  ]);
});

test('what no retry can mend is tried once', async () => {
  const cases = [
    [{ apiKey: keys.creditExhausted }, {}, 429],
    [{}, { temperature: 9 }, 400],
    [{ apiKey: 'sk-nobody-has-this-one' }, {}, 401],
    [{}, { model: 'nope' }, 404],
  ];
  for (const [options, body, status] of cases) {
    const { counting, tries } = watched({ ...options, maxRetries: 2 });

    await assert.rejects(counting.chat.completions.create({ model, messages, ...body }), { status });
    assert.deepEqual(tries, [[status, '0']]);
  }
});

test('a conflict is not tried again, being told so', async () => {
  const { counting, tries } = watched({ maxRetries: 2 });
  const headers = { 'idempotency-key': crypto.randomUUID() };
  await counting.chat.completions.create({ model, messages }, { headers });
  const asked = counting.chat.completions.create({ model, messages, seed: 1 }, { headers });

  await assert.rejects(asked, { status: 409 });
  assert.deepEqual(tries.map(([status]) => status), [200, 409]);
});

test('a caller of an exhausted credit sees the class of a limit', async () => {
  const asked = client({ apiKey: keys.creditExhausted, maxRetries: 2 }).chat.completions.create({ model, messages });

  await assert.rejects(asked, RateLimitError);
});

test('a repeated request with its Idempotency-Key gets the answer that was made', async () => {
  const headers = { 'idempotency-key': crypto.randomUUID() };
  const first = await client().chat.completions.create({ model, messages }, { headers });
  const second = await client().chat.completions.create({ model, messages }, { headers }).withResponse();

  assert.deepEqual(second.data, first);
  assert.equal(second.response.headers.get('idempotent-replayed'), 'true');
});
