// Chats with the OpenAI SDK: whole, streamed, with tools and with a schema.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { zodFunction, zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

import { collect, model } from '../server.mjs';
import { client } from './client.mjs';

const messages = [{ role: 'user', content: 'one two three' }];
const call = { name: 'weather', arguments: ['{"city":', ' "Bern"}'] };
const weather = { type: 'function', function: { name: 'weather', parameters: { type: 'object', properties: {} } } };

test('a whole answer has its text, its end and its usage', async () => {
  const answer = await client().chat.completions.create({ model, messages });

  assert.equal(answer.choices[0].message.content, 'one two three');
  assert.equal(answer.choices[0].finish_reason, 'stop');
  assert.deepEqual([answer.usage.prompt_tokens, answer.usage.completion_tokens], [3, 4]);
  assert.match(answer._request_id, /^req_/);
});

test('a stream adds up to the same, with one id and the usage last', async () => {
  const stream = await client().chat.completions.create({
    model,
    messages,
    stream: true,
    stream_options: { include_usage: true },
  });
  const chunks = await collect(stream);

  assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join(''), 'one two three');
  assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.equal(chunks.at(-1).usage.total_tokens, 7);
});

test('several choices of a stream are told apart', async () => {
  const script = { choices: [{ tokens: ['a', 'b'] }, { tokens: ['c'], eos: false }] };
  const runner = client().chat.completions.stream({ model, messages, n: 2, max_tokens: 2, script });
  const answer = await runner.finalChatCompletion();

  assert.deepEqual(
    answer.choices.map((choice) => [choice.index, choice.message.content, choice.finish_reason]),
    [
      [0, 'ab', 'length'],
      [1, 'cc', 'length'],
    ],
  );
});

test('the stream helper tells of the text as it comes and of the whole at the end', async () => {
  const runner = client().chat.completions.stream({ model, messages, stream_options: { include_usage: true } });
  const seen = [];
  runner.on('content', (delta, snapshot) => seen.push([delta, snapshot]));
  const answer = await runner.finalChatCompletion();

  assert.equal(seen.map(([delta]) => delta).join(''), 'one two three');
  assert.equal(seen.at(-1)[1], 'one two three');
  assert.equal(answer.choices[0].message.role, 'assistant');
  assert.equal(answer.choices[0].finish_reason, 'stop');
  assert.equal((await runner.totalUsage()).total_tokens, 7);
});

test('tool calls arrive whole, streamed or not', async () => {
  const body = { model, messages, tools: [weather], script: { tool_calls: [call, { name: 'weather' }] } };
  const whole = await client().chat.completions.create(body);
  const streamed = await client().chat.completions.stream(body).finalChatCompletion();

  for (const { choices } of [whole, streamed]) {
    assert.equal(choices[0].finish_reason, 'tool_calls');
    assert.deepEqual(
      choices[0].message.tool_calls.map((made) => [made.type, made.function.name, made.function.arguments]),
      [
        ['function', 'weather', '{"city": "Bern"}'],
        ['function', 'weather', ''],
      ],
    );
    assert.equal(new Set(choices[0].message.tool_calls.map((made) => made.id)).size, 2);
  }
});

test('the tool runner calls the function and sends what it says back', async () => {
  const asked = [];
  const runner = client().chat.completions.runTools(
    {
      model,
      messages,
      script: { tool_calls: [call] },
      tools: [
        zodFunction({
          name: 'weather',
          parameters: z.object({ city: z.string() }),
          function: ({ city }) => asked.push(city) && 'sunny',
        }),
      ],
    },
    { maxChatCompletions: 2 },
  );
  await runner.done();

  assert.deepEqual(asked, ['Bern', 'Bern']);
  assert.deepEqual(
    runner.messages.map((message) => message.role),
    ['user', 'assistant', 'tool', 'assistant', 'tool'],
  );
});

test('an answer is parsed by its schema, streamed or not', async () => {
  const Place = z.object({ city: z.string(), inhabitants: z.number() });
  const body = {
    model,
    messages,
    response_format: zodResponseFormat(Place, 'place'),
    script: { tokens: ['{"city": "Bern",', ' "inhabitants": 134000}'] },
  };
  const whole = await client().chat.completions.parse(body);
  const streamed = await client().chat.completions.stream(body).finalChatCompletion();

  for (const { choices } of [whole, streamed]) {
    assert.deepEqual(choices[0].message.parsed, { city: 'Bern', inhabitants: 134000 });
  }
});

test('an answer that was cut short is not parsed but told', async () => {
  const body = {
    model,
    messages,
    max_tokens: 1,
    response_format: zodResponseFormat(z.object({}), 'nothing'),
    script: { tokens: ['{', '}'] },
  };

  await assert.rejects(client().chat.completions.parse(body), { name: 'Error', message: /length limit/ });
});

test('logprobs come with every token, streamed or not', async () => {
  const body = {
    model,
    messages,
    logprobs: true,
    top_logprobs: 1,
    script: { tokens: ['a', 'b'], logprobs: [-0.25, '-inf'], top: [{ a: -0.25 }, { c: -0.5 }] },
  };
  const whole = await client().chat.completions.create(body);
  const streamed = await client().chat.completions.stream(body).finalChatCompletion();

  for (const { choices } of [whole, streamed]) {
    assert.deepEqual(
      choices[0].logprobs.content.map((entry) => [entry.token, entry.logprob, entry.top_logprobs[0].token]),
      [
        ['a', -0.25, 'a'],
        ['b', -9999, 'c'],
      ],
    );
  }
});

test('legacy completions are answered, streamed or not', async () => {
  const whole = await client().completions.create({ model, prompt: ['a b', 'c'] });
  const chunks = await collect(await client().completions.create({ model, prompt: 'a b', stream: true }));

  assert.deepEqual(
    whole.choices.map((choice) => choice.text),
    ['a b', 'c'],
  );
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.text ?? '').join(''), 'a b');
});

test('models are listed and found by name', async () => {
  const listed = await collect(client().models.list());

  assert.deepEqual(
    listed.map((found) => found.id),
    [model],
  );
  assert.equal((await client().models.retrieve(model)).object, 'model');
});
