// The OpenAI SDK, pointed at the server.

import OpenAI from 'openai';

import { baseURL, keys } from '../server.mjs';

/** A client that tries once, unless `options` say otherwise. */
export function client(options = {}) {
  return new OpenAI({ baseURL, apiKey: keys.all, maxRetries: 0, timeout: 20_000, ...options });
}
