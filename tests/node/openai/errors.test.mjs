// Every way to fail that a caller can meet, as the OpenAI SDK raises it.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import OpenAI, {
  APIConnectionError,
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
} from 'openai';

import { collect, keys, model } from '../server.mjs';
import { client } from './client.mjs';

const messages = [{ role: 'user', content: 'one two three' }];
const invalid = 'invalid_request_error';

/** The routes that use a model, each with a good body. */
const ROUTES = {
  'chat.completions': { model, messages },
  completions: { model, prompt: 'one two three' },
  responses: { model, input: 'one two three' },
  embeddings: { model, input: 'one two three' },
};

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

/** Ask on every route, whole and streamed; `body` and `options` are the client's, the rest is how it must fail. */
function fails(what, { body = {}, options = {}, ...expected }) {
  for (const [route, good] of Object.entries(ROUTES)) {
    for (const stream of route === 'embeddings' ? [false] : [false, true]) {
      test(`${what} on ${route}${stream ? ', streamed' : ''}`, async () => {
        const resource = route.split('.').reduce((found, name) => found[name], client(options.client));
        const asked = resource.create({ ...good, ...body, ...(stream && { stream }) }, options.request);
        const error = await thrown(asked, expected.class);

        assert.equal(error.status, expected.status);
        assert.deepEqual([error.type, error.code], [expected.type, expected.code]);
        assert.equal(error.param, route === 'embeddings' && expected.paramOfEmbeddings ? null : expected.param ?? null);
        assert.match(error.message, expected.message);
        assert.equal(error.headers.get('retry-after') !== null, expected.retryAfter ?? false);
        assert.equal(error.headers.get('x-should-retry'), expected.shouldRetry ?? null);
      });
    }
  }
}

fails('no key at all', {
  options: { client: { defaultHeaders: { authorization: null } } },
  class: AuthenticationError,
  status: 401,
  type: invalid,
  code: null,
  message: /Authorization/,
});

fails('a wrong key', {
  options: { client: { apiKey: 'sk-nobody-has-this-one' } },
  class: AuthenticationError,
  status: 401,
  type: invalid,
  code: 'invalid_api_key',
  message: /Incorrect API key provided/,
});

fails('a lane that the key has not', {
  options: { client: { apiKey: keys.standardLane }, request: { headers: { 'x-laneway-lane': 'interactive' } } },
  class: PermissionDeniedError,
  status: 403,
  type: 'permission_error',
  code: null,
  param: 'X-Laneway-Lane',
  message: /may not use the lane 'interactive'/,
});

fails('an unknown model', {
  body: { model: 'nope' },
  class: NotFoundError,
  status: 404,
  type: invalid,
  code: 'model_not_found',
  param: 'model',
  message: /The model 'nope' does not exist/,
});

fails('a value of the wrong type', {
  body: { user: 5 },
  class: BadRequestError,
  status: 400,
  type: invalid,
  code: 'invalid_type',
  param: 'user',
  message: /expected a string/,
});

fails('a body that is too large', {
  body: { user: 'x'.repeat(4_000_000) },
  class: APIError,
  status: 413,
  type: invalid,
  code: 'request_too_large',
  message: /bytes/,
});

fails('a body that is not JSON', {
  options: { request: { headers: { 'content-type': 'multipart/form-data' } } },
  class: APIError,
  status: 415,
  type: invalid,
  code: 'unsupported_media_type',
  message: /JSON/,
});

fails('a rate limit that is reached', {
  options: { client: { apiKey: keys.rateReached } },
  class: RateLimitError,
  status: 429,
  type: 'requests',
  code: 'rate_limit_exceeded',
  message: /Rate limit reached/,
  retryAfter: true,
});

fails('a credit that is exhausted', {
  options: { client: { apiKey: keys.creditExhausted } },
  class: RateLimitError,
  status: 429,
  type: 'insufficient_quota',
  code: 'credit_balance_exhausted',
  message: /Credit balance exhausted/,
  shouldRetry: 'false',
});

for (const kind of ['crash', 'end']) {
  fails(`a backend that fails by itself (${kind})`, {
    body: { script: { fail: { kind, message: '/etc/secret' } } },
    class: InternalServerError,
    status: 500,
    type: 'server_error',
    code: null,
    message: /^500 The server had an error/,
  });
}

fails('a backend that refuses', {
  body: { script: { fail: { kind: 'bad_request', message: 'not this' } } },
  class: BadRequestError,
  status: 400,
  type: invalid,
  code: null,
  message: /not this/,
});

fails('a backend that has no room', {
  body: { script: { fail: { kind: 'overloaded' } } },
  class: InternalServerError,
  status: 503,
  type: 'service_unavailable',
  code: 'overloaded',
  message: /./,
  retryAfter: true,
});

fails('a backend that is away', {
  body: { script: { fail: { kind: 'unavailable' } } },
  class: InternalServerError,
  status: 503,
  type: 'service_unavailable',
  code: 'backend_unavailable',
  message: /./,
  retryAfter: true,
});

fails('a deadline that passes', {
  body: { script: { fail: { kind: 'hang' } } },
  options: { request: { headers: { 'x-request-timeout': '0.05' } } },
  class: InternalServerError,
  status: 504,
  type: 'server_error',
  code: 'deadline_exceeded',
  message: /deadline/,
});

test('an Idempotency-Key that stands for another body is a conflict, which no retry mends', async () => {
  const headers = { 'idempotency-key': crypto.randomUUID() };
  await client().chat.completions.create({ model, messages }, { headers });
  const asked = client().chat.completions.create({ model, messages, seed: 1 }, { headers });
  const error = await thrown(asked, ConflictError);

  assert.deepEqual([error.status, error.type], [409, invalid]);
  assert.equal(error.headers.get('x-should-retry'), 'false');
});

test('what is not there is not found', async () => {
  const [route, found, response] = await Promise.all([
    thrown(client().post('/nope', { body: {} }), NotFoundError),
    thrown(client().models.retrieve('a/b'), NotFoundError),
    thrown(client().responses.retrieve('resp_x'), NotFoundError),
  ]);

  assert.deepEqual([route.code, route.type, route.message], [null, invalid, '404 Invalid URL (POST /v1/nope)']);
  assert.deepEqual([found.code, found.param], ['model_not_found', 'model']);
  assert.equal(response.type, invalid);
});

test('a wrong method has a class of no status of its own', async () => {
  const error = await thrown(client().get('/chat/completions'), APIError);

  assert.deepEqual([error.status, error.code, error.type], [405, 'method_not_supported', invalid]);
});

for (const kind of ['crash', 'end', 'unavailable']) {
  for (const route of ['chat.completions', 'completions', 'responses']) {
    test(`a stream of ${route} that fails in its midst (${kind}) throws, after what had come`, async () => {
      const resource = route.split('.').reduce((found, name) => found[name], client());
      const script = { tokens: ['a', 'b'], fail: { kind, after_tokens: 1, message: '/etc/secret' } };
      const stream = await resource.create({ ...ROUTES[route], stream: true, script });
      const seen = [];
      const error = await thrown(
        (async () => {
          for await (const event of stream) seen.push(event);
        })(),
        APIError,
      );

      assert.ok(seen.length > 0);
      assert.equal(error.type, kind === 'unavailable' ? 'service_unavailable' : 'server_error');
      assert.equal(error.code, kind === 'unavailable' ? 'backend_unavailable' : null);
      assert.equal(kind === 'unavailable' || !error.message.includes('secret'), true);
      assert.match(error.requestID, /^req_/);
    });
  }
}

test('the stream helper of chats fails with the error of the stream', async () => {
  const script = { tokens: ['a', 'b'], fail: { kind: 'crash', after_tokens: 1 } };
  const runner = client().chat.completions.stream({ model, messages, script });

  await thrown(runner.finalChatCompletion(), APIError);
});

test('a server that does not answer in time is a time-out, before the first byte', async () => {
  const slow = { model, messages, script: { first_delay_s: 60 } };

  await thrown(client({ timeout: 100 }).chat.completions.create(slow), APIConnectionTimeoutError);
});

test('a caller that gives up gets an abort, whole and streamed', async () => {
  const body = { model, messages, script: { tokens: ['a', 'b'], fail: { kind: 'hang', after_tokens: 1 } } };
  const asked = client().chat.completions.create(body, { signal: AbortSignal.timeout(100) });
  await thrown(asked, APIUserAbortError);

  const runner = client().chat.completions.stream(body);
  runner.on('content', () => runner.abort());
  await thrown(runner.done(), APIUserAbortError);
});

test('a server that is not there is a connection error', async () => {
  const nobody = new OpenAI({ baseURL: 'http://127.0.0.1:1/v1', apiKey: 'any', maxRetries: 0 });

  await thrown(nobody.models.list(), APIConnectionError);
});

test('after all this the server answers', async () => {
  const chunks = await collect(await client().chat.completions.create({ model, messages, stream: true }));

  assert.equal(chunks.at(-1).choices[0].finish_reason, 'stop');
});
