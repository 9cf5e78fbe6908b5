// Vercel's AI SDK over `@ai-sdk/openai-compatible`, which talks to chats, completions and embeddings.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import {
  APICallError,
  embed,
  embedMany,
  generateObject,
  generateText,
  NoObjectGeneratedError,
  Output,
  RetryError,
  stepCountIs,
  streamObject,
  streamText,
  tool,
} from 'ai';
import { z } from 'zod';

import { assertCancels, baseURL, collect, count, eventually, keys, model } from '../server.mjs';
import { scripted } from './scripts.mjs';

const prompt = 'one two three';
const call = { name: 'weather', arguments: ['{"city":', ' "Bern"}'] };
const Place = z.object({ city: z.string(), inhabitants: z.number() });
const place = { city: 'Bern', inhabitants: 134000 };
const weather = tool({ inputSchema: z.object({ city: z.string() }), execute: ({ city }) => `sunny in ${city}` });

/** The provider; what it asks is answered by the scripts, or by the words of the prompt. */
function laneway({ apiKey = keys.all, ...options } = {}, ...scripts) {
  return createOpenAICompatible({
    name: 'laneway',
    baseURL,
    apiKey,
    includeUsage: true,
    supportsStructuredOutputs: true,
    ...(scripts.length && { fetch: scripted(...scripts) }),
    ...options,
  });
}

test('a whole text has its end and its usage', async () => {
  const answer = await generateText({ model: laneway()(model), prompt });

  assert.deepEqual([answer.text, answer.finishReason], [prompt, 'stop']);
  assert.deepEqual([answer.usage.inputTokens, answer.usage.outputTokens], [3, 4]);
  assert.match(answer.response.headers['x-request-id'], /^req_/);
});

test('a stream adds up to the same', async () => {
  const answer = streamText({ model: laneway()(model), prompt });
  const pieces = await collect(answer.textStream);

  assert.equal(pieces.join(''), prompt);
  assert.equal(await answer.finishReason, 'stop');
  assert.equal((await answer.usage).totalTokens, 7);
});

test('reasoning is apart from the text, streamed or not', async () => {
  const thinking = laneway({}, { reasoning: ['let', ' me'], tokens: ['Well.'] });
  const whole = await generateText({ model: thinking(model), prompt });
  const streamed = streamText({ model: thinking(model), prompt });

  assert.deepEqual([whole.reasoningText, whole.text], ['let me', 'Well.']);
  assert.deepEqual([await streamed.reasoningText, await streamed.text], ['let me', 'Well.']);
});

for (const [how, ask] of Object.entries({
  whole: (options) => generateText(options),
  streamed: async (options) => {
    const answer = streamText(options);
    await answer.consumeStream();
    return { steps: await answer.steps, text: await answer.text };
  },
})) {
  test(`the loop of tools calls the function and goes on with what it said, ${how}`, async () => {
    const calling = laneway({}, { tokens: ['One moment.'], tool_calls: [call] }, null);
    const { steps, text } = await ask({
      model: calling(model),
      prompt,
      tools: { weather },
      stopWhen: stepCountIs(3),
    });

    assert.equal(text, 'one two three\nOne moment.\nsunny in Bern');
    assert.deepEqual(
      steps.map((step) => step.finishReason),
      ['tool-calls', 'stop'],
    );
    assert.deepEqual(steps[0].toolCalls[0].input, { city: 'Bern' });
    assert.equal(steps[0].toolResults[0].output, 'sunny in Bern');
  });
}

test('an object is made to its schema, or to none but JSON', async () => {
  const script = { tokens: ['{"city": "Bern",', ' "inhabitants": 134000}'] };
  for (const supportsStructuredOutputs of [true, false]) {
    const provider = laneway({ supportsStructuredOutputs }, script);
    const whole = await generateObject({ model: provider(model), prompt, schema: Place });
    const streamed = streamObject({ model: provider(model), prompt, schema: Place });
    await collect(streamed.partialObjectStream);
    const output = await generateText({ model: provider(model), prompt, output: Output.object({ schema: Place }) });

    assert.deepEqual([whole.object, await streamed.object, output.output], [place, place, place]);
  }
});

test('an object that was cut short is told', async () => {
  const provider = laneway({}, { tokens: ['{', '}'] });

  await assert.rejects(
    generateObject({ model: provider(model), prompt, schema: Place, maxOutputTokens: 1 }),
    (error) => NoObjectGeneratedError.isInstance(error) && error.finishReason === 'length',
  );
});

test('plain completions are answered, streamed or not', async () => {
  const whole = await generateText({ model: laneway().completionModel(model), prompt: 'a' });
  const streamed = streamText({ model: laneway().completionModel(model), prompt: 'a' });

  assert.equal(await streamed.text, whole.text);
  assert.match(whole.text, /a/);
  assert.equal((await streamed.usage).totalTokens, whole.usage.totalTokens);
});

test('vectors come for one text and for many', async () => {
  const embedding = laneway().embeddingModel(model);
  const one = await embed({ model: embedding, value: 'three' });
  const many = await embedMany({ model: embedding, values: ['one two', 'three'] });

  assert.deepEqual(
    many.embeddings.map((vector) => vector.length),
    [256, 256],
  );
  assert.deepEqual(many.embeddings[1], one.embedding);
  assert.equal(many.usage.tokens, 3);
});

for (const [what, options, body, status, isRetryable] of [
  ['a wrong key', { apiKey: 'sk-nobody-has-this-one' }, {}, 401, false],
  ['an unknown model', {}, { model: 'nope' }, 404, false],
  ['a rate limit', { apiKey: keys.rateReached }, {}, 429, true],
  ['a backend that fails', {}, { script: { fail: { kind: 'crash' } } }, 500, true],
  ['a backend that is away', {}, { script: { fail: { kind: 'unavailable' } } }, 503, true],
  ['a value out of bounds', {}, { temperature: 9 }, 400, false],
]) {
  test(`${what} is an error of the call, with its words and its status, streamed or not`, async () => {
    const provider = laneway({ ...options, transformRequestBody: (asked) => ({ ...asked, ...body }) });
    const seen = [];
    await generateText({ model: provider(model), prompt, maxRetries: 0 }).catch((error) => seen.push(error));
    const streamed = streamText({
      model: provider(model),
      prompt,
      maxRetries: 0,
      onError: ({ error }) => seen.push(error),
    });
    await streamed.consumeStream();

    assert.equal(seen.length, 2);
    for (const error of seen) {
      assert.ok(APICallError.isInstance(error), String(error));
      assert.deepEqual([error.statusCode, error.isRetryable], [status, isRetryable]);
      assert.equal(error.message, JSON.parse(error.responseBody).error.message);
      assert.match(error.responseHeaders['x-request-id'], /^req_/);
    }
  });
}

test('what may pass is tried again', async () => {
  const provider = laneway({}, { fail: { kind: 'crash' } });
  const before = await count('started');
  const asked = generateText({ model: provider(model), prompt, maxRetries: 1 });

  await assert.rejects(asked, (error) => RetryError.isInstance(error) && error.errors.length === 2);
  assert.equal((await count('started')) - before, 2);
});

for (const kind of ['crash', 'end', 'unavailable']) {
  test(`a stream that fails in its midst (${kind}) is no whole answer`, async () => {
    const provider = laneway({}, { tokens: ['a', 'b'], fail: { kind, after_tokens: 1 } });
    const errors = [];
    const answer = streamText({ model: provider(model), prompt, onError: ({ error }) => errors.push(error) });
    const parts = await collect(answer.fullStream);

    assert.deepEqual(
      parts.filter((part) => part.type === 'text-delta').map((part) => part.text),
      ['a'],
    );
    assert.equal(errors.length, 1);
    assert.equal(parts.findLast((part) => part.type === 'finish').finishReason, 'error');
  });
}

test('an abort reaches the backend, whole and streamed', async () => {
  const stuck = laneway({}, { tokens: ['a', 'b'], fail: { kind: 'hang', after_tokens: 1 } });
  await assertCancels(async () => {
    const leaving = new AbortController();
    const asked = generateText({ model: stuck(model), prompt, abortSignal: leaving.signal });
    const rejected = assert.rejects(asked, { name: 'AbortError' });
    await eventually(async () => (await count('running')) === 1, 'it runs');
    leaving.abort();
    await rejected;
  });
  await assertCancels(async () => {
    const leaving = new AbortController();
    const answer = streamText({ model: stuck(model), prompt, abortSignal: leaving.signal });
    const types = [];
    for await (const part of answer.fullStream) {
      types.push(part.type);
      if (part.type === 'text-delta') leaving.abort();
    }
    assert.equal(types.at(-1), 'abort');
  });
});
