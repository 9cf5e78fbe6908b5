// The Responses API with the OpenAI SDK: whole, streamed, with tools and with a schema.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { zodResponsesFunction, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';

import { collect, model } from '../server.mjs';
import { client } from './client.mjs';

const input = 'one two three';
const call = { name: 'weather', arguments: ['{"city":', ' "Bern"}'] };
const weather = zodResponsesFunction({ name: 'weather', parameters: z.object({ city: z.string() }) });

test('a whole response has its text and its usage', async () => {
  const response = await client().responses.create({ model, input });

  assert.equal(response.output_text, input);
  assert.equal(response.status, 'completed');
  assert.deepEqual([response.usage.input_tokens, response.usage.output_tokens], [3, 4]);
  assert.match(response._request_id, /^req_/);
});

test('a stream begins with the response, counts its events and ends with the whole', async () => {
  const events = await collect(await client().responses.create({ model, input, stream: true }));

  assert.deepEqual(
    events.map((event) => event.sequence_number),
    events.map((_, at) => at),
  );
  assert.equal(events[0].type, 'response.created');
  assert.equal(events.at(-1).type, 'response.completed');
  assert.equal(events.at(-1).response.output[0].content[0].text, input);
});

test('the stream helper tells of the text as it comes and of the response at the end', async () => {
  const runner = client().responses.stream({ model, input });
  const seen = [];
  runner.on('response.output_text.delta', (event) => seen.push([event.delta, event.snapshot]));
  const response = await runner.finalResponse();

  assert.equal(seen.map(([delta]) => delta).join(''), input);
  assert.equal(seen.at(-1)[1], input);
  assert.equal(response.output_text, input);
});

test('reasoning, text and calls are items of their own, streamed or not', async () => {
  const script = { reasoning: ['let', ' me'], tokens: ['One', ' moment.'], tool_calls: [call] };
  const whole = await client().responses.create({ model, input, script, tools: [weather] });
  const streamed = await client().responses.stream({ model, input, script, tools: [weather] }).finalResponse();

  for (const { output } of [whole, streamed]) {
    assert.deepEqual(
      output.map((item) => item.type),
      ['reasoning', 'message', 'function_call'],
    );
    assert.deepEqual([output[2].name, output[2].arguments], ['weather', '{"city": "Bern"}']);
  }
  assert.deepEqual(streamed.output[2].parsed_arguments, { city: 'Bern' });
});

test('the arguments of a call come piece by piece', async () => {
  const runner = client().responses.stream({ model, input, script: { tool_calls: [call] }, tools: [weather] });
  const snapshots = [];
  runner.on('response.function_call_arguments.delta', (event) => snapshots.push(event.snapshot));
  await runner.done();

  assert.deepEqual(snapshots, ['{"city":', '{"city": "Bern"}']);
});

test('what a function said goes back with the history', async () => {
  const first = await client().responses.create({ model, input, script: { tool_calls: [call] }, tools: [weather] });
  const said = { type: 'function_call_output', call_id: first.output[0].call_id, output: 'sunny' };
  const second = await client().responses.create({
    model,
    input: [{ role: 'user', content: input }, ...first.output, said],
    script: { tokens: ['Sunny.'] },
  });

  assert.equal(second.output_text, 'Sunny.');
});

test('an answer is parsed by its schema, streamed or not', async () => {
  const body = {
    model,
    input,
    text: { format: zodTextFormat(z.object({ city: z.string() }), 'place') },
    script: { tokens: ['{"city":', ' "Bern"}'] },
  };
  const whole = await client().responses.parse(body);
  const streamed = await client().responses.stream(body).finalResponse();

  assert.deepEqual([whole.output_parsed, streamed.output_parsed], [{ city: 'Bern' }, { city: 'Bern' }]);
});

test('an answer that was cut short is incomplete, streamed or not', async () => {
  const body = { model, input, max_output_tokens: 1 };
  const whole = await client().responses.create(body);
  const streamed = await client().responses.stream(body).finalResponse();

  for (const response of [whole, streamed]) {
    assert.deepEqual([response.status, response.incomplete_details], ['incomplete', { reason: 'max_output_tokens' }]);
  }
});

test('input tokens are counted without an answer', async () => {
  assert.equal((await client().responses.inputTokens.count({ model, input })).input_tokens, 3);
});
