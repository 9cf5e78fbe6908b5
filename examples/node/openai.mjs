// Stream a chat with the OpenAI SDK for Node.
//
// npm install openai@6
// OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none node openai.mjs "What is the capital of France?"

import OpenAI from 'openai';

const client = new OpenAI({
  baseURL: process.env.OPENAI_BASE_URL ?? 'http://127.0.0.1:8000/v1',
  apiKey: process.env.OPENAI_API_KEY ?? 'none',
});
const model = process.env.OPENAI_MODEL || (await client.models.list()).data[0].id;
const question = process.argv.slice(2).join(' ') || 'What is the capital of France?';

const stream = await client.chat.completions.create({
  model,
  messages: [{ role: 'user', content: question }],
  max_tokens: 64,
  temperature: 0,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  process.stdout.write(chunk.choices[0]?.delta.content ?? '');
  if (chunk.usage) {
    console.log(`\n[${chunk.usage.prompt_tokens} prompt tokens, ${chunk.usage.completion_tokens} completion tokens]`);
  }
}
