// Vercel's AI SDK over `@ai-sdk/openai`, which talks to responses and checks every event against a schema.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { createOpenAI } from '@ai-sdk/openai';
import { APICallError, embedMany, generateObject, generateText, stepCountIs, streamObject, streamText, tool } from 'ai';
import { z } from 'zod';

import { assertCancels, baseURL, collect, keys, model } from '../server.mjs';
import { scripted } from './scripts.mjs';

const prompt = 'one two three';
const call = { name: 'weather', arguments: ['{"city":', ' "Bern"}'] };
const Place = z.object({ city: z.string() });
const weather = tool({ inputSchema: Place, execute: ({ city }) => `sunny in ${city}` });

/** The provider; what it asks is answered by the scripts, or by the words of the prompt. */
function laneway(...scripts) {
  return createOpenAI({ baseURL, apiKey: keys.all, ...(scripts.length && { fetch: scripted(...scripts) }) });
}

test('a whole text has its end and its usage', async () => {
  const answer = await generateText({ model: laneway()(model), prompt });

  assert.deepEqual([answer.text, answer.finishReason], [prompt, 'stop']);
  assert.deepEqual([answer.usage.inputTokens, answer.usage.outputTokens], [3, 4]);
  assert.deepEqual(answer.warnings, []);
});

test('every event of a stream passes the checks, and they add up to the same', async () => {
  const answer = streamText({ model: laneway()(model), prompt, includeRawChunks: true });
  const parts = await collect(answer.fullStream);

  assert.deepEqual(
    parts.filter((part) => part.type === 'error'),
    [],
  );
  assert.ok(parts.some((part) => part.type === 'raw' && part.rawValue.type === 'response.completed'));
  assert.equal(await answer.text, prompt);
  assert.equal(await answer.finishReason, 'stop');
  assert.equal((await answer.usage).totalTokens, 7);
});

test('reasoning is apart from the text, streamed or not', async () => {
  const script = { reasoning: ['let', ' me'], tokens: ['Well.'] };
  const whole = await generateText({ model: laneway(script)(model), prompt });
  const streamed = streamText({ model: laneway(script)(model), prompt });

  assert.deepEqual([whole.text, await streamed.text], ['Well.', 'Well.']);
  assert.equal((await streamed.reasoning).length, whole.reasoning.length);
  assert.equal(whole.usage.outputTokenDetails.reasoningTokens, 2);
});

for (const [how, ask] of Object.entries({
  whole: (options) => generateText(options),
  streamed: async (options) => {
    const answer = streamText(options);
    await answer.consumeStream();
    return { steps: await answer.steps, text: await answer.text };
  },
})) {
  test(`the loop of tools goes on with what the function said, ${how}`, async () => {
    const calling = laneway({ tokens: ['One moment.'], tool_calls: [call] }, null);
    const { steps, text } = await ask({
      model: calling(model),
      prompt,
      tools: { weather },
      stopWhen: stepCountIs(3),
      providerOptions: { openai: { store: false } },
    });

    assert.equal(text, 'one two three\nOne moment.\nsunny in Bern');
    assert.deepEqual(
      steps.map((step) => step.finishReason),
      ['tool-calls', 'stop'],
    );
    assert.equal(steps[0].toolResults[0].output, 'sunny in Bern');
  });
}

test('a history that only refers to what was said is refused, and sent whole it is read', async () => {
  const first = await generateText({ model: laneway()(model), prompt });
  const messages = [{ role: 'user', content: prompt }, ...first.response.messages, { role: 'user', content: 'four' }];
  const whole = await generateText({ model: laneway()(model), messages, providerOptions: { openai: { store: false } } });

  await assert.rejects(generateText({ model: laneway()(model), messages }), { statusCode: 404, message: /send the item/ });
  assert.equal(whole.usage.inputTokens, 7);
});

test('an object is made to its schema, streamed or not', async () => {
  const script = { tokens: ['{"city":', ' "Bern"}'] };
  const whole = await generateObject({ model: laneway(script)(model), prompt, schema: Place });
  const streamed = streamObject({ model: laneway(script)(model), prompt, schema: Place });
  await collect(streamed.partialObjectStream);

  assert.deepEqual([whole.object, await streamed.object], [{ city: 'Bern' }, { city: 'Bern' }]);
});

test('an answer that was cut short ends for its length, streamed or not', async () => {
  const whole = await generateText({ model: laneway()(model), prompt, maxOutputTokens: 1 });
  const streamed = streamText({ model: laneway()(model), prompt, maxOutputTokens: 1 });

  assert.deepEqual([whole.finishReason, await streamed.finishReason], ['length', 'length']);
});

test('the same provider reaches chats, completions and vectors', async () => {
  const chat = await generateText({ model: laneway().chat(model), prompt });
  const streamed = streamText({ model: laneway().chat(model), prompt });
  const { embeddings } = await embedMany({ model: laneway().embedding(model), values: ['one', 'two'] });

  assert.deepEqual([chat.text, await streamed.text], [prompt, prompt]);
  assert.deepEqual(
    embeddings.map((vector) => vector.length),
    [256, 256],
  );
});

test('an error before the first event has its status and its words', async () => {
  const asked = generateText({ model: laneway()('nope'), prompt, maxRetries: 0 });

  await assert.rejects(asked, (error) => {
    assert.ok(APICallError.isInstance(error));
    assert.deepEqual([error.statusCode, error.data.error.code], [404, 'model_not_found']);
    return error.message === error.data.error.message;
  });
});

for (const kind of ['crash', 'end', 'unavailable']) {
  test(`a stream that fails in its midst (${kind}) is no whole answer`, async () => {
    const failing = laneway({ tokens: ['a', 'b'], fail: { kind, after_tokens: 1 } });
    const errors = [];
    const answer = streamText({ model: failing(model), prompt, onError: ({ error }) => errors.push(error) });
    const parts = await collect(answer.fullStream);

    assert.ok(errors.length > 0);
    assert.equal(parts.findLast((part) => part.type === 'finish').finishReason, 'error');
  });
}

test('an abort in the midst of a stream reaches the backend', async () => {
  const stuck = laneway({ tokens: ['a', 'b'], fail: { kind: 'hang', after_tokens: 1 } });
  await assertCancels(async () => {
    const leaving = new AbortController();
    const answer = streamText({ model: stuck(model), prompt, abortSignal: leaving.signal });
    for await (const part of answer.fullStream) if (part.type === 'text-delta') leaving.abort();
  });
});
