// Messages with Anthropic's SDK: whole, streamed, with tools, thoughts and a schema, failed and left.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import Anthropic, {
  APIConnectionTimeoutError,
  APIError,
  APIUserAbortError,
  AuthenticationError,
  BadRequestError,
  ConflictError,
  InternalServerError,
  NotFoundError,
  PermissionDeniedError,
  RateLimitError,
} from '@anthropic-ai/sdk';
import { betaZodTool } from '@anthropic-ai/sdk/helpers/beta/zod';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { z } from 'zod';

import { assertCancels, collect, count, eventually, keys, model, url } from '../server.mjs';

const messages = [{ role: 'user', content: 'one two three' }];
const body = { model, max_tokens: 64, messages };
const call = { name: 'weather', arguments: ['{"city":', ' "Bern"}'] };
const weather = { name: 'weather', input_schema: { type: 'object' } };
const stuck = { script: { tokens: ['a', 'b'], fail: { kind: 'hang', after_tokens: 1 } } };

/** A client that tries once, unless `options` say otherwise. */
function client(options = {}) {
  return new Anthropic({ baseURL: url, apiKey: keys.all, maxRetries: 0, timeout: 20_000, ...options });
}

/** What is thrown, of exactly this class and with a request id when the server answered. */
async function thrown(promise, type) {
  const error = await promise.then(
    () => assert.fail('nothing was thrown'),
    (error) => error,
  );
  assert.equal(error.constructor, type, `${error.constructor.name}: ${error.message}`);
  if (error.status !== undefined) assert.match(error.requestID, /^req_/);
  return error;
}

test('a whole message has its text, its end and its usage', async () => {
  const message = await client().messages.create({ ...body, system: 'Be short.' });

  assert.deepEqual(
    message.content.map((block) => [block.type, block.text]),
    [['text', 'Be short.\none two three']],
  );
  assert.deepEqual([message.stop_reason, message.stop_sequence], ['end_turn', null]);
  assert.deepEqual([message.usage.input_tokens, message.usage.output_tokens], [5, 6]);
  assert.match(message._request_id, /^req_/);
});

test('the stream helper tells of the text as it comes and of the message at the end', async () => {
  const stream = client().messages.stream(body);
  const seen = [];
  stream.on('text', (delta, snapshot) => seen.push([delta, snapshot]));
  const message = await stream.finalMessage();

  assert.equal(seen.map(([delta]) => delta).join(''), 'one two three');
  assert.equal(seen.at(-1)[1], 'one two three');
  assert.deepEqual([message.stop_reason, message.usage.output_tokens], ['end_turn', 4]);
});

test('thoughts, text and calls are blocks of their own, streamed or not', async () => {
  const asked = {
    ...body,
    max_tokens: 2048,
    tools: [weather],
    thinking: { type: 'enabled', budget_tokens: 1024 },
    script: { reasoning: ['let', ' me'], tokens: ['One', ' moment.'], tool_calls: [call, { name: 'weather' }] },
  };
  const whole = await client().messages.create(asked);
  const streamed = await client().messages.stream(asked).finalMessage();

  for (const { content, stop_reason } of [whole, streamed]) {
    assert.deepEqual(
      content.map((block) => block.thinking ?? block.text ?? block.input),
      ['let me', 'One moment.', { city: 'Bern' }, {}],
    );
    assert.equal(stop_reason, 'tool_use');
    assert.notEqual(content[2].id, content[3].id);
  }
});

test('the tool runner calls the function and sends what it says back', async () => {
  const asked = [];
  const runner = client().beta.messages.toolRunner({
    ...body,
    max_iterations: 2,
    script: { tool_calls: [call] },
    tools: [
      betaZodTool({
        name: 'weather',
        description: 'Tells it.',
        inputSchema: z.object({ city: z.string() }),
        run: ({ city }) => `sunny in ${asked.push(city) && city}`,
      }),
    ],
  });
  const answers = await collect(runner);

  assert.deepEqual(asked, ['Bern', 'Bern']);
  assert.deepEqual(
    answers.map((message) => message.stop_reason),
    ['tool_use', 'tool_use'],
  );
});

test('an answer is parsed by its schema, streamed or not', async () => {
  const asked = {
    ...body,
    output_config: { format: zodOutputFormat(z.object({ city: z.string() })) },
    script: { tokens: ['{"city":', ' "Bern"}'] },
  };
  const whole = await client().messages.parse(asked);
  const streamed = await client().messages.stream(asked).finalMessage();

  assert.deepEqual([whole.parsed_output, streamed.parsed_output], [{ city: 'Bern' }, { city: 'Bern' }]);
});

test('the cap and the stop strings that end an answer are told', async () => {
  const cut = await client().messages.create({ ...body, max_tokens: 1 });
  const stopped = await client().messages.create({ ...body, stop_sequences: ['three'] });

  assert.equal(cut.stop_reason, 'max_tokens');
  assert.deepEqual([stopped.stop_reason, stopped.stop_sequence], ['stop_sequence', 'three']);
});

test('tokens are counted without an answer', async () => {
  assert.deepEqual(await client().messages.countTokens({ model, messages }), { input_tokens: 3 });
});

const failing = (kind) => ({ body: { script: { fail: { kind, message: '/etc/secret' } } } });

for (const [what, { body: more, options, request, ...expected }] of Object.entries({
  'no key at all': {
    options: { defaultHeaders: { 'x-api-key': null } },
    class: AuthenticationError,
    status: 401,
    type: 'authentication_error',
  },
  'a wrong key': {
    options: { apiKey: 'sk-nobody-has-this-one' },
    class: AuthenticationError,
    status: 401,
    type: 'authentication_error',
  },
  'a lane that the key has not': {
    options: { apiKey: keys.standardLane, defaultHeaders: { 'x-laneway-lane': 'interactive' } },
    class: PermissionDeniedError,
    status: 403,
    type: 'permission_error',
  },
  'an unknown model': { body: { model: 'nope' }, class: NotFoundError, status: 404, type: 'not_found_error' },
  'a value out of bounds': {
    body: { temperature: 1.5 },
    class: BadRequestError,
    status: 400,
    type: 'invalid_request_error',
  },
  'a field that is missing': {
    body: { max_tokens: undefined },
    class: BadRequestError,
    status: 400,
    type: 'invalid_request_error',
    message: /max_tokens: Field required/,
  },
  'a body that is too large': {
    body: { system: 'x'.repeat(4_000_000) },
    class: APIError,
    status: 413,
    type: 'request_too_large',
  },
  'a rate limit that is reached': {
    options: { apiKey: keys.rateReached },
    class: RateLimitError,
    status: 429,
    type: 'rate_limit_error',
  },
  'a credit that is exhausted': {
    options: { apiKey: keys.creditExhausted },
    class: RateLimitError,
    status: 429,
    type: 'rate_limit_error',
  },
  'a backend that fails': { ...failing('crash'), class: InternalServerError, status: 500, type: 'api_error' },
  'a backend that ends without a word': {
    ...failing('end'),
    class: InternalServerError,
    status: 500,
    type: 'api_error',
  },
  'a backend that is away': { ...failing('unavailable'), class: InternalServerError, status: 503, type: 'api_error' },
  'a backend that has no room': {
    ...failing('overloaded'),
    class: InternalServerError,
    status: 529,
    type: 'overloaded_error',
  },
  'a deadline that passes': {
    ...failing('hang'),
    options: { defaultHeaders: { 'x-request-timeout': '0.05' } },
    class: InternalServerError,
    status: 504,
    type: 'timeout_error',
  },
})) {
  for (const stream of [false, true]) {
    test(`${what} has its class, status and type${stream ? ', streamed' : ''}`, async () => {
      const error = await thrown(client(options).messages.create({ ...body, ...more, stream }), expected.class);

      assert.deepEqual([error.status, error.type], [expected.status, expected.type]);
      assert.match(error.error.error.message, expected.message ?? /./);
      assert.equal(error.error.request_id, error.requestID);
      assert.equal(expected.status !== 500 || !error.message.includes('secret'), true);
    });
  }
}

test('an Idempotency-Key that stands for another body is a conflict', async () => {
  const headers = { 'idempotency-key': crypto.randomUUID() };
  await client().messages.create(body, { headers });

  await thrown(client().messages.create({ ...body, max_tokens: 63 }, { headers }), ConflictError);
});

for (const kind of ['crash', 'end', 'unavailable']) {
  test(`a stream that fails in its midst (${kind}) throws, after what had come`, async () => {
    const script = { tokens: ['a', 'b'], fail: { kind, after_tokens: 1, message: '/etc/secret' } };
    const seen = [];
    const stream = await client().messages.create({ ...body, stream: true, script });
    const error = await thrown(
      (async () => {
        for await (const event of stream) seen.push(event.type);
      })(),
      APIError,
    );

    assert.ok(seen.includes('content_block_delta'));
    assert.ok(!seen.includes('message_stop'));
    assert.equal(error.type, 'api_error');
    assert.match(error.requestID, /^req_/);
    await thrown(client().messages.stream({ ...body, script }).finalMessage(), APIError);
  });
}

test('what may pass is tried again, as often as the client says', async () => {
  const before = await count('started');
  const asked = client({ maxRetries: 1 }).messages.create({ ...body, script: { fail: { kind: 'crash' } } });

  await thrown(asked, InternalServerError);
  assert.equal((await count('started')) - before, 2);
});

test('a client that leaves, gives up or waits no longer ends the work behind it', async () => {
  await assertCancels(async () => {
    for await (const event of await client().messages.create({ ...body, stream: true, ...stuck })) {
      if (event.type === 'content_block_delta') break;
    }
  });
  await assertCancels(async () => {
    const stream = client().messages.stream({ ...body, ...stuck });
    stream.on('text', () => stream.abort());
    await thrown(stream.done(), APIUserAbortError);
  });
  await assertCancels(async () => {
    const leaving = new AbortController();
    const asked = thrown(client().messages.create({ ...body, ...stuck }, { signal: leaving.signal }), APIUserAbortError);
    await eventually(async () => (await count('running')) === 1, 'it runs');
    leaving.abort();
    await asked;
  });
  await assertCancels(async () => {
    await thrown(client({ timeout: 1000 }).messages.create({ ...body, ...stuck }), APIConnectionTimeoutError);
  });
});
