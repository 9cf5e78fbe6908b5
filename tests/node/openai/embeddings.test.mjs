// Vectors with the OpenAI SDK, which asks for base64 unless it is told otherwise, and unpacks it itself.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { model } from '../server.mjs';
import { client } from './client.mjs';

const input = ['one two', 'three'];

test('vectors have their width and values, packed by default or not', async () => {
  const script = { vectors: [[0.5, -0.25, 1e-3], [0, 1, 2]] };
  const packed = await client().embeddings.create({ model, input, script });
  const plain = await client().embeddings.create({ model, input, script, encoding_format: 'float' });
  const raw = await client().embeddings.create({ model, input, script, encoding_format: 'base64' });

  for (const { data } of [packed, plain]) {
    assert.deepEqual(
      data.map(({ embedding }) => embedding.map(Math.fround)),
      [[0.5, -0.25, Math.fround(1e-3)], [0, 1, 2]],
    );
  }
  assert.equal(Buffer.from(raw.data[0].embedding, 'base64').length, 3 * 4);
  assert.deepEqual(packed.usage, { prompt_tokens: 3, total_tokens: 3 });
});

test('every vector is as wide as the model says, in the order of the inputs', async () => {
  const whole = await client().embeddings.create({ model, input });
  const [second] = (await client().embeddings.create({ model, input: input[1] })).data;

  assert.deepEqual(
    whole.data.map(({ index, embedding }) => [index, embedding.length]),
    [
      [0, 256],
      [1, 256],
    ],
  );
  assert.deepEqual(whole.data[1].embedding, second.embedding);
});

test('fewer dimensions and token ids are understood', async () => {
  const shortened = await client().embeddings.create({ model, input, dimensions: 8 });
  const ofIds = await client().embeddings.create({ model, input: [[1, 2], [3]] });

  assert.deepEqual(
    shortened.data.map(({ embedding }) => embedding.length),
    [8, 8],
  );
  assert.equal(ofIds.data.length, 2);
  assert.equal(ofIds.usage.prompt_tokens, 3);
});
