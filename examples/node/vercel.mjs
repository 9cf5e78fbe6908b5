// Two turns with Vercel's AI SDK, streamed, the history sent along.
//
// npm install ai@6 @ai-sdk/openai-compatible@2
// OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none node vercel.mjs "What is 2 and 2?"

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { streamText } from 'ai';

const baseURL = process.env.OPENAI_BASE_URL ?? 'http://127.0.0.1:8000/v1';
const apiKey = process.env.OPENAI_API_KEY ?? 'none';
const laneway = createOpenAICompatible({ name: 'laneway', baseURL, apiKey, includeUsage: true });
const model = process.env.OPENAI_MODEL || (await firstModel());
const messages = [];

for (const question of [process.argv.slice(2).join(' ') || 'What is 2 and 2?', 'Are you sure?']) {
  messages.push({ role: 'user', content: question });
  const answer = streamText({ model: laneway(model), messages, maxOutputTokens: 64, temperature: 0 });
  for await (const piece of answer.textStream) process.stdout.write(piece);
  const { inputTokens, outputTokens } = await answer.usage;
  console.log(`\n[${inputTokens} input tokens, ${outputTokens} output tokens]`);
  messages.push(...(await answer.response).messages);
}

async function firstModel() {
  const reply = await fetch(`${baseURL}/models`, { headers: { authorization: `Bearer ${apiKey}` } });
  return (await reply.json()).data[0].id;
}
